"""``paddle.vision.datasets.folder``: pictures by folders."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from fleetx.compat.paddle.io.dataset import Dataset
from fleetx.compat.paddle.vision.image import image_load

ENDINGS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".webp")


class ImageFolder(Dataset):
    """All pictures below a folder."""

    def __init__(
        self,
        root: str,
        loader: Callable[[str], Any] | None = None,
        extensions: Sequence[str] | None = None,
        transform: Callable[[Any], Any] | None = None,
        is_valid_file: Callable[[str], bool] | None = None,
    ) -> None:
        self.root, self.loader, self.transform = root, loader or image_load, transform
        endings = tuple(extensions or ENDINGS)
        valid = is_valid_file or (lambda path: path.lower().endswith(endings))
        files = sorted(str(path) for path in Path(root).rglob("*") if path.is_file())
        self.samples: list[Any] = [path for path in files if valid(path)]
        if not self.samples:
            raise RuntimeError(f"there is no picture below {root!r} ({', '.join(endings)}).")

    def _picture(self, path: str) -> Any:
        found = self.loader(path)
        return found if self.transform is None else self.transform(found)

    @override
    def __getitem__(self, index: int) -> Any:
        return [self._picture(self.samples[index])]

    @override
    def __len__(self) -> int:
        return len(self.samples)


class DatasetFolder(ImageFolder):
    """Pictures, each of the class that its folder names."""

    def __init__(self, root: str, *args: Any, **kwargs: Any) -> None:
        super().__init__(root, *args, **kwargs)
        self.classes = sorted(path.name for path in Path(root).iterdir() if path.is_dir())
        self.class_to_idx = {name: at for at, name in enumerate(self.classes)}
        self.samples = [
            (path, self.class_to_idx[Path(path).relative_to(root).parts[0]])
            for path in self.samples
        ]
        self.targets = [label for _, label in self.samples]

    @override
    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        return self._picture(path), label
