"""Raw requests to brokers and coordinators, and one table of the meanings of their answers."""
