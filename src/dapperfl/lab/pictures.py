"""Which pictures a run has, in a word, so that it is not continued on others."""

import hashlib
import json

from dapperfl.data.benchmark import Federation


def mark_of(world: Federation) -> str:
    """Name the pictures by who holds how many of what; their bits may depend on a decoder."""
    digest = hashlib.sha256(json.dumps(world.classes).encode())
    for part in (world.train, world.validation, world.test):
        for owner, examples in part.items():
            labels = ",".join(map(str, examples.labels.tolist()))
            digest.update(json.dumps([owner, *examples.images.shape[1:], labels]).encode())
    return digest.hexdigest()
