"""Files: a sink that commits by an atomic rename, and the reader of its whole checkpoints.

In an object store the commit is a put-if-absent: see `object_folder`.
"""

from connectors.files.abandoned_files import abandoned_files
from connectors.files.checkpoint_manifest import CommittedFile, committed_files
from connectors.files.file_sink import FileSink

__all__ = ["CommittedFile", "FileSink", "abandoned_files", "committed_files"]
