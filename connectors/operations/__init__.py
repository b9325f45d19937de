"""What an operator asks: which transactions are open, and does the output hold each record once."""
