"""The contract of a two-phase sink, run on the sink beside this file."""

from folder_sink import FolderSink

from transactions.testing import TwoPhaseCommitSinkContract


class TestFolderSink(TwoPhaseCommitSinkContract):
    """Everything that `transactions/sink.py` asks for, on a folder."""

    def new_sink(self):
        """Return the sink as another process would make it: it holds nothing but a path."""
        return FolderSink(self.folder)

    def visible(self):
        """Read the target as its readers do: file after file, line after line."""
        files = sorted((self.folder / "data").glob("*"))
        return [int(line) for file in files for line in file.read_text().splitlines()]

    def leftovers(self):
        """Return what no reader sees."""
        return [path.name for path in (self.folder / "staged").glob("*")]
