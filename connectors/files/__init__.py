"""Files: a sink whose commit is an atomic rename, and the reader of its whole checkpoints."""

from connectors.files.checkpoint_manifest import CommittedFile, committed_files
from connectors.files.file_sink import FileSink

__all__ = ["CommittedFile", "FileSink", "committed_files"]
