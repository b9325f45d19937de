"""For tests of a user's own pipeline: a broker, a process that is killed, and an audit.

`plugin` is the pytest plugin. pytest imports it in every run, so nothing heavy is imported before a
fixture is used. `auditor` judges what a reader saw and imports nothing else of the product.
"""
