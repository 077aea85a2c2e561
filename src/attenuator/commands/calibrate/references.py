"""What `--reference` may be: the same checkpoint in fp32 or, for lists, a larger model."""

from pathlib import Path
from typing import NamedTuple

from attenuator.bundle import Manifest, read_manifest
from attenuator.errors import InvalidRequest


class References(NamedTuple):
    """Other bundles that run: at most one of them is there.

    Attributes:
        checkpoint: of the same checkpoint in fp32, which agreement is with.
        larger: of another model, whose order of lists counts.
    """

    checkpoint: Path | None = None
    larger: Path | None = None


def references_of(reference: Path | None, folder: Path, manifest: Manifest, *, lists: bool) -> References:
    """What a reference is to a bundle.

    Args:
        reference: a bundle, None where none was given.
        folder: of the bundle to calibrate.
        manifest: its manifest.
        lists: whether the data holds lists.

    Raises:
        InvalidRequest: it can be neither, or is missing.
        BundleError: it cannot be read.
    """
    if reference is None:
        if manifest.rounded:
            raise InvalidRequest(
                f"bundle {folder} is {manifest.precision}, and agreement is with the checkpoint's exact answers in "
                "fp32: export the checkpoint in fp32 as well, and give that bundle as --reference"
            )
        return References()
    if not lists and not manifest.rounded:
        raise InvalidRequest(
            f"bundle {folder} is fp32, its own exact answers are the reference: leave --reference out (only lists may "
            "have one, a larger model)"
        )
    other = read_manifest(reference)
    same = bool(manifest.provenance.weights) and other.provenance.weights == manifest.provenance.weights
    if lists and not (manifest.rounded and same):
        _check_larger(reference, other, folder, manifest)
        return References(larger=reference)
    _check_checkpoint(reference, other, folder, manifest)
    return References(checkpoint=reference)


def _check_larger(reference: Path, other: Manifest, folder: Path, manifest: Manifest) -> None:
    """Refuses what cannot score the documents of lists again."""
    if not other.ranks:
        raise InvalidRequest(
            f"--reference {reference} has {len(other.labels)} outputs, must have one to order the documents of lists"
        )
    if other.revision == manifest.revision:
        raise InvalidRequest(f"--reference {reference} is {folder} itself, must be another model: leave it out")


def _check_checkpoint(reference: Path, other: Manifest, folder: Path, manifest: Manifest) -> None:
    """Refuses what is not the bundle's checkpoint in fp32."""
    if other.rounded:
        raise InvalidRequest(f"--reference {reference} is {other.precision}, must be a bundle in fp32")
    for place, each in ((folder, manifest), (reference, other)):
        if not each.provenance.weights:
            raise InvalidRequest(f"bundle {place} does not say which checkpoint it holds: export it again")
    if other.provenance.weights != manifest.provenance.weights or other.labels != manifest.labels:
        raise InvalidRequest(
            f"--reference {reference} holds other weights or labels than {folder}: export "
            f"'{manifest.provenance.source}', which that one was made of, in fp32 with the same --positions"
        )
    if other.max_tokens < manifest.max_tokens:
        raise InvalidRequest(
            f"--reference {reference} takes {other.max_tokens} tokens, must take {manifest.max_tokens} as {folder} does"
        )
