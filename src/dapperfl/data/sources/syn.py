"""SYN, the Synthetic Digits of Roy et al. (2018), as image folders: <split>/<digit>/<image>."""

from collections.abc import Mapping
from pathlib import Path

from dapperfl.data.sources.class_folders import class_folders, label_files
from dapperfl.data.sources.found import Found
from dapperfl.data.sources.survey import Survey, plain

CLASSES = tuple("0123456789")
_ALIASES = {name: label for label, name in enumerate(CLASSES)}
# In order of preference: where there is a test folder, a folder for validation is left alone.
_FOLDERS: Mapping[str, tuple[str, ...]] = {
    "train": ("imgstrain", "train", "training"),
    "test": ("imgstest", "test", "testing", "imgsvalid", "imgsval", "valid", "val", "validation"),
}


def wanted(split: str) -> str:
    """Say which folders are looked for."""
    folders = "imgs_train, train" if split == "train" else "imgs_valid, val, test"
    return f"synthetic_digits/<{folders}>/<0-9>/*.jpg"


def find(survey: Survey, split: str) -> Found | None:
    """Find the folder of a split that has a folder for every digit."""
    for name in _FOLDERS[split]:
        for folder in survey.folders:
            if plain(folder.name) == name and _is_syn(survey, folder):
                found = class_folders(survey, folder, _ALIASES)
                if len(found) == len(CLASSES):
                    labelled = label_files(survey, found, CLASSES)
                    return Found(labelled.files, labelled.read)
    return None


def _is_syn(survey: Survey, folder: Path) -> bool:
    """Other digits lie in folders 0 to 9 as well: `syn…` must be on the way, or `imgs_…`."""
    named = any(part.startswith("syn") for part in survey.below(folder))
    return named or plain(folder.name).startswith("imgs")
