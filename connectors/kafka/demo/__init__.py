"""The demo's plain clients: its loader and its independent reader."""
