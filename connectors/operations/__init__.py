"""What an operator asks: which transactions are open, and whether the output holds each record
once.
"""
