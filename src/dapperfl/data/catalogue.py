"""What is known about the data sets behind the benchmarks: origin, terms, files, official counts.

The MD5 sums are those that torchvision and many others publish for these files; MD5 detects
damage, it does not stop a forger. Where no sum is published none is given here, and what was
prepared is held against the official number of pictures of each class instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dapperfl.errors import ConfigError
from dapperfl.naming import did_you_mean

TERMS = "as far as known to us; read the owners' terms before you use or pass on the data"


@dataclass(frozen=True)
class Download:
    """One official file that anybody may fetch."""

    name: str
    urls: tuple[str, ...]  # tried in this order
    size: int  # bytes, about
    md5: str


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the pictures of one domain come from."""

    title: str
    homepage: str
    licence: str
    citation: str
    downloads: tuple[Download, ...] = ()
    by_hand: str  # how to get it without `data fetch`
    # Pictures of each class in the official splits, for those of which we are sure.
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


def _mnist(name: str, size: int, md5: str) -> Download:
    bases = (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
    )
    return Download(name, tuple(f"{base}/{name}" for base in bases), size, md5)


def _usps(name: str, size: int, md5: str) -> Download:
    base = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"
    return Download(name, (f"{base}/{name}",), size, md5)


def _svhn(name: str, size: int, md5: str) -> Download:
    return Download(name, (f"http://ufldl.stanford.edu/housenumbers/{name}",), size, md5)


_MNIST = Origin(
    title="MNIST",
    homepage="http://yann.lecun.com/exdb/mnist/",
    licence="CC BY-SA 3.0",
    citation="LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document "
    "recognition. Proceedings of the IEEE 86(11), 1998",
    downloads=(
        _mnist("train-images-idx3-ubyte.gz", 9_912_422, "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        _mnist("train-labels-idx1-ubyte.gz", 28_881, "d53e105ee54ea40749a09fcbcd1e9432"),
        _mnist("t10k-images-idx3-ubyte.gz", 1_648_877, "9fb629c4189551a2d022fa330f9573f3"),
        _mnist("t10k-labels-idx1-ubyte.gz", 4_542, "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
    by_hand="get the four *-ubyte.gz files; torchvision's MNIST/raw folder has them as well",
    counts={
        "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        "test": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    },
)

_USPS = Origin(
    title="USPS",
    homepage="https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps",
    licence="research use",
    citation="Hull: A database for handwritten text recognition research. "
    "IEEE Transactions on Pattern Analysis and Machine Intelligence 16(5), 1994",
    downloads=(
        _usps("usps.bz2", 6_579_383, "ec16c51db3855ca6c91edd34d0e9b197"),
        _usps("usps.t.bz2", 1_831_726, "8ea070ee2aca1ac39742fdd1ef5ed118"),
    ),
    by_hand="get usps.bz2 and usps.t.bz2, or zip.train.gz and zip.test.gz from the site of "
    "The Elements of Statistical Learning",
    counts={
        "train": (1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644),
        "test": (359, 264, 198, 166, 200, 160, 170, 147, 166, 177),
    },
)

_SVHN = Origin(
    title="SVHN, cropped digits",
    homepage="http://ufldl.stanford.edu/housenumbers/",
    licence="non-commercial use",
    citation="Netzer, Wang, Coates, Bissacco, Wu, Ng: Reading digits in natural images with "
    "unsupervised feature learning. NIPS workshop, 2011",
    downloads=(
        _svhn("train_32x32.mat", 182_040_794, "e26dedcc434d2e4c54c9b2d4a06d8373"),
        _svhn("test_32x32.mat", 64_275_384, "eb5a983be6a315427106f1b164d9cef3"),
    ),
    by_hand="get train_32x32.mat and test_32x32.mat",
    counts={
        "train": (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
        "test": (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
    },
)

_SYN = Origin(
    title="SYN, Synthetic Digits",
    homepage="https://www.kaggle.com/datasets/prasunroy/synthetic-digits",
    licence="unknown",
    citation="Roy, Ghosh, Bhattacharya, Pal: Effects of degradations on deep neural network "
    "architectures. arXiv 1807.10108, 2018",
    by_hand="it is on Kaggle behind a login and has no public address: log in, download "
    "prasunroy/synthetic-digits and unpack it",
)


def _office(title: str, also: str, train: tuple[int, ...], test: tuple[int, ...]) -> Origin:
    return Origin(
        title=f"Office-Caltech-10, {title}",
        homepage="http://www-scf.usc.edu/~boqinggo/domainadaptation.html",
        licence="research use",
        citation="Gong, Shi, Sha, Grauman: Geodesic flow kernel for unsupervised domain "
        f"adaptation. CVPR, 2012; {also}",
        by_hand="it has no stable public address: get Office_Caltech_10 (mirrors exist on GitHub), "
        "or Office-31 and Caltech-256, and unpack it as <domain>/<class>/<image>",
        counts={"train": train, "test": test},
    )


_SAENKO = (
    "Saenko, Kulis, Fritz, Darrell: Adapting visual category models to new domains. ECCV, 2010"
)

CATALOGUE: Mapping[str, Mapping[str, Origin]] = {
    "digits": {"mnist": _MNIST, "usps": _USPS, "svhn": _SVHN, "syn": _SYN},
    "office_caltech": {
        "caltech": _office(
            "Caltech",
            "Griffin, Holub, Perona: Caltech-256 object category dataset. Caltech, 2007",
            (121, 88, 80, 111, 68, 102, 107, 75, 70, 77),
            (30, 22, 20, 27, 17, 26, 26, 19, 17, 20),
        ),
        "amazon": _office(
            "Amazon",
            _SAENKO,
            (74, 66, 76, 79, 80, 80, 79, 80, 74, 80),
            (18, 16, 18, 20, 20, 20, 20, 20, 20, 18),
        ),
        "webcam": _office(
            "Webcam",
            _SAENKO,
            (24, 16, 25, 23, 21, 24, 35, 24, 21, 24),
            (5, 5, 6, 4, 6, 6, 8, 6, 6, 6),
        ),
        "dslr": _office(
            "DSLR",
            _SAENKO,
            (10, 17, 10, 11, 8, 18, 18, 10, 6, 19),
            (2, 4, 2, 2, 2, 6, 4, 2, 2, 4),
        ),
    },
}


def origins(benchmark: str) -> Mapping[str, Origin]:
    """Return the origins of a benchmark's domains.

    Raises:
        ConfigError: it is not one of those that are prepared from official files.
    """
    if benchmark not in CATALOGUE:
        raise ConfigError(
            f'no official files are known for "{benchmark}"{did_you_mean(benchmark, CATALOGUE)}'
        )
    return CATALOGUE[benchmark]
