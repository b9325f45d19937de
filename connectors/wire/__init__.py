"""Raw requests to brokers and coordinators, and one table of what they answer."""
