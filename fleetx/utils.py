"""Names of the documents that had no better place."""

from fleetx.data.downloads.downloader import Downloader

__all__ = ["Downloader"]
