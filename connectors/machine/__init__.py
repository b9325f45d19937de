"""This machine: Java, pinned jars, folders of the user, a parent that may die."""
