"""Labelled images from files: lists, decoding, augmentation, batches."""

from fleetx.data.images.dataset import Images
from fleetx.data.images.files import LabelledFiles
from fleetx.data.images.loaders import image_loader, train_loader, val_loader
from fleetx.data.images.views import View

__all__ = ["Images", "LabelledFiles", "View", "image_loader", "train_loader", "val_loader"]
