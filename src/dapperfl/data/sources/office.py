"""Office-Caltech-10 as image folders, <domain>/<class>/<image>, also cut out of its two origins.

Office-31 has <domain>/images/<class> and 31 classes, Caltech-256 numbered ones: the ten that both
share are taken. Picture i of a domain, in sorted order, is for training if i mod 10 is at most 7.
"""

from collections.abc import Mapping
from pathlib import Path

from dapperfl.data.sources.class_folders import class_folders, label_files
from dapperfl.data.sources.found import Found
from dapperfl.data.sources.survey import Survey, plain
from dapperfl.errors import DataError

DOMAINS: Mapping[str, tuple[str, ...]] = {  # the names of its folder, in plain form
    "caltech": ("caltech", "caltech10", "caltech256", "256objectcategories"),
    "amazon": ("amazon", "amazon10"),
    "webcam": ("webcam", "webcam10"),
    "dslr": ("dslr", "dslr10"),
}
CLASSES: Mapping[str, tuple[str, ...]] = {  # further names of its folder, in plain form
    "backpack": ("003backpack",),
    "bike": ("bicycle", "touringbike", "224touringbike"),
    "calculator": ("027calculator",),
    "headphones": ("headphone", "101headphones"),
    "keyboard": ("computerkeyboard", "045computerkeyboard"),
    "laptop": ("laptopcomputer", "laptop101", "127laptop101"),
    "monitor": ("computermonitor", "046computermonitor"),
    "mouse": ("computermouse", "047computermouse"),
    "mug": ("coffeemug", "041coffeemug"),
    "projector": ("videoprojector", "238videoprojector"),
}
_ALIASES = {
    alias: label
    for label, (name, others) in enumerate(CLASSES.items())
    for alias in (name, *others)
}


def wanted(domain: str, split: str) -> str:
    """Say which folder is looked for; both splits come from it."""
    assert split in ("train", "test")
    return f"Office_Caltech_10/{domain}/<{', '.join(CLASSES)}>/*.jpg"


def find(domain: str, survey: Survey, split: str) -> Found | None:
    """Find the folder of a domain and cut a split out of it.

    Raises:
        DataError: two folders may be meant, or some of the ten classes are not there.
    """
    homes = _homes(domain, survey)
    if not homes:
        return None
    if len(homes) > 1:
        raise DataError(
            f"{' and '.join(map(str, homes))} may each be {domain}; name a folder further in"
        )
    found = class_folders(survey, homes[0], _ALIASES)
    if lacking := [name for label, name in enumerate(CLASSES) if label not in found]:
        raise DataError(f"{homes[0]} has no folder for {', '.join(lacking)}")
    labelled = label_files(survey, found, tuple(CLASSES))
    chosen = labelled.where(lambda place: (place % 10 <= 7) == (split == "train"))
    return Found(chosen.files, chosen.read, remark=_left_out(survey, homes[0]))


def _homes(domain: str, survey: Survey) -> list[Path]:
    """List the folders that hold classes and are named like a domain, directly or by a parent."""
    homes = []
    for folder in survey.folders:
        named = folder.parent if plain(folder.name) == "images" else folder
        if plain(named.name) in DOMAINS[domain] and class_folders(survey, folder, _ALIASES):
            homes.append(folder)
    if len(homes) > 1:  # Office-31 often lies beside it
        whole = [path for path in homes if "officecaltech" in "".join(survey.below(path))]
        return whole or homes
    return homes


def _left_out(survey: Survey, home: Path) -> str:
    """Say how many classes of a larger data set are not among the ten."""
    others = [
        path for path in survey.folders if path.parent == home and plain(path.name) not in _ALIASES
    ]
    return f"{len(others)} folders of {home} are not among the ten classes" if others else ""
