"""x"""
class Downloader:
    """x"""
