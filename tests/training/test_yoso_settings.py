"""Settings of YOSO attention in training: what they refuse."""

import pytest

from attenuator.training.yoso.settings import Settings


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"num_hashes": 513}, r"num_hashes is 513, must be a whole number in \[0, 512\]"),
        ({"hash_bits": 0}, r"hash_bits is 0, must be a whole number in \[1, 16\]"),
        ({"normalize": 3}, r"normalize is 3, must be a whole number in \[0, 2\]"),
        ({"hash": "sha"}, "hash is 'sha', must be one of: gaussian, hadamard"),
        ({"norm_lift": -1.0}, r"norm_lift is -1.0, must be a number in \[0, 1e\+30\]"),
        ({"gradient": "exact"}, "gradient is 'exact', must be one of: bound, collided, cheapest"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_name_what_is_wrong(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Settings(**fields)  # type: ignore[arg-type]
