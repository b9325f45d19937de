"""Raw requests to transaction coordinators, and one table of what they answer."""
