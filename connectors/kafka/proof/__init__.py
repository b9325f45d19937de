"""The proof of `sparkonce verify`: reading both sides, and naming what differs."""
