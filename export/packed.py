"""What a layer sees while a model runs on a packed batch: attention, selection and pooling as operators of the domain.

Everything is `[T, channels]`: sequences end to end, no padding, no mask. `layers` says what the layers of each
model family compute with it. Where a layer selects rows, T is smaller from there on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attenuator.errors import ExportError
from attenuator.export.selection import LENGTHS, SELECT, Selection
from attenuator.ops import OPERATORS
from attenuator.ops.spec import UNMERGED_CU_SEQLENS, Operator
from attenuator.ops.torch_op import overload

__all__ = ["OPERATOR_BY_KEY", "PackedBatch", "Projections"]

OPERATOR_BY_KEY: dict[str, Operator] = {operator.key: operator for operator in OPERATORS}
POOL = OPERATOR_BY_KEY["pool"]
NO_TENSORS: Mapping[str, Tensor] = {}


class Projections(NamedTuple):
    """The linear layers `[num_heads * head_dim, C]` of one attention."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear


@dataclass
class PackedBatch:
    """One forward pass over a packed batch.

    Attributes:
        operator: which operator computes attention.
        attributes: those of its attributes that do not depend on the layer: `estimator`, `hash_bits`, `hash`.
        num_layers: layers of the model, repeated calls of a shared layer counted.
        only_first: whether the classifier uses the first token alone, so that the last layer computes those rows.
        inputs: graph inputs by name.
        global_token: whether the first token sees and is seen by all, in models that have windows.
        selection: which layers select rows.
        layer: index of the layer that runs now.
        cu_seqlens: int32 `[B+1]`, of the rows that there are now.
        following: tensors `[T, ...]` beside the hidden rows, by name; every selection gathers their rows too.
        importance: of each row, `[T]`, from the current layer's attention where that layer selects, until it has.
        frozen: of each selection whose other rows rejoin: all rows `[T, C]`, and int64 `[K]` which of them went on.
        value_flops: second outputs of the attention nodes so far that can sample, `[B]` each.
        has_value_flops: whether any node, sampling or not, has such an output.
        form: what computes an operator: as it is served, or with gradients.
    """

    operator: Operator
    attributes: dict[str, Any]
    num_layers: int
    only_first: bool
    inputs: dict[str, Tensor]
    global_token: bool = False
    selection: Selection = Selection()
    layer: int = 0
    cu_seqlens: Tensor = field(init=False)
    following: dict[str, Tensor] = field(init=False)
    importance: Tensor | None = None
    frozen: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    value_flops: list[Tensor] = field(default_factory=list)
    has_value_flops: bool = False
    form: Callable[[Operator], Any] = overload

    def __post_init__(self) -> None:
        """Begins with every row."""
        self.cu_seqlens = self.inputs["cu_seqlens"]
        self.following = {"position_ids": self.inputs["position_ids"]}

    @property
    def narrows(self) -> bool:
        """Whether the current layer computes the first token of each sequence alone."""
        return self.only_first and self.layer == self.num_layers - 1

    def pool(self, hidden: Tensor, mode: str) -> Tensor:
        """`[T, C]` to `[B, C]`."""
        pooled: Tensor = self.form(POOL)(hidden, self.cu_seqlens, mode=mode)
        return pooled

    def pool_tokens(self, hidden: Tensor) -> Tensor:
        """Mean of each sequence's tokens, `[T, C]` to `[B, C]`: a row for several counts as often."""
        pooled = self.pool(hidden, "mean")
        if not self.has_means:
            return pooled
        before, now = (starts[1:] - starts[:-1] for starts in (self.inputs["cu_seqlens"], self.cu_seqlens))
        last = hidden[self.cu_seqlens[1:].long() - 1]
        share = (now.float() / before.float()).to(hidden.dtype)[:, None]
        return pooled * share + last * (1 - share)

    def mean_value_flops(self) -> Tensor | None:
        """The model's share of the value projection `[B]`: the mean over the nodes that can sample, 1 without any.

        A node that computes the first row alone spends less than the whole projection without sampling anything. In
        the mean it would show a saving where every answer is exact.

        Returns:
            None where the operator has no such output.
        """
        if not self.has_value_flops:
            return None
        if not self.value_flops:
            return torch.ones(self.cu_seqlens.shape[0] - 1)
        return torch.stack(self.value_flops).mean(dim=0)

    def rows(self, hidden: Tensor) -> Tensor:
        """The rows that the current layer computes: `[T, C]` as it is, or the first of each sequence `[B, C]`."""
        return self.pool(hidden, "first") if self.narrows else hidden

    def query_rows(self, hidden: Tensor) -> Tensor:
        """The rows whose queries attention takes: those of `rows`, or all where it reads more than each row's own."""
        return self.rows(hidden) if self.attends_narrowly else hidden

    @property
    def attends_narrowly(self) -> bool:
        """Whether the operator can compute the first row of each sequence alone."""
        return any(item.name == "queries" for item in self.operator.attributes)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        hidden: Tensor,
        value: nn.Linear,
        *,
        num_heads: int,
        scale: float = 0.0,
        window: int = 0,
        weights: Mapping[str, Tensor] = NO_TENSORS,
        tables: Mapping[str, Tensor] = NO_TENSORS,
    ) -> Tensor:
        """Mixes the values of each sequence, then moves on to the next layer.

        Args:
            query: `[rows, num_heads * head_dim]`, of `query_rows`.
            key: `[T, num_heads * head_dim]`.
            hidden: `[T, C]`, what the value projection reads.
            value: the value projection.
            num_heads: attention heads.
            scale: factor on the scores, for operators that have one; 0 means that of `attributes`, or 1/sqrt(head_dim).
            window: keys with |i - j| <= window, for operators that have one; 0 means that of `attributes`, or all.
            weights: further inputs by name that were trained, for operators that have them.
            tables: further inputs by name, what distances add to scores, for operators that have them.

        Returns:
            `[rows, num_heads * head_dim]`.
        """
        own = {"scale": scale, "window": window, "trained_window": window}
        of_model = {name: given for name, given in own.items() if given}
        of_node = {"num_heads": num_heads, "queries": "first" if self.narrows else "all", **of_model}
        measures = window or tables or self.attributes.get("window")
        positions = self.true_positions if measures else None
        tensors = {"query": query, "key": key, "positions": positions, **weights, **tables}
        outputs = self.node(tensors, hidden, value, of_node)
        self.importance = outputs.get("importance")
        mixed = outputs["output"] if self.attends_narrowly else self.rows(outputs["output"])
        self.layer += 1
        return mixed

    def attend_beside_global(
        self, hidden: Tensor, local: Projections, own: Projections, *, num_heads: int, window: int
    ) -> Tensor:
        """As `attend` under a window, where the first token is global: it sees every token, and every row sees it.

        Its own row has projections of its own, and is a node of its own. The other rows see it by the projections that
        they have in common, in one softmax with their window (Beltagy et al., "Longformer", 2020, section 3.1).

        Args:
            hidden: `[T, C]`; no sequence is empty.
            local: projections that rows in a window have in common.
            own: projections for the row of the first token.
            num_heads: attention heads.
            window: keys with |i - j| <= window.

        Returns:
            `[rows, num_heads * head_dim]`.

        Raises:
            ExportError: some rows stand for several.
        """
        if self.has_means:
            raise ExportError(
                f"merge is '{self.selection.merge}', but this model has a first token that is apart from its windows, "
                "where merging was not measured; must be none"
            )
        query = own.query(self.pool(hidden, "first"))
        of_first = {"num_heads": num_heads, "queries": "first", "trained_window": 0}
        outputs = self.node({"query": query, "key": own.key(hidden)}, hidden, own.value, of_first)
        mixed, self.importance = outputs["output"], outputs.get("importance")
        if not self.narrows:
            tensors = {"query": local.query(hidden), "key": local.key(hidden), "positions": self.true_positions}
            widths = {"window": window, "trained_window": window}
            of_others = {"num_heads": num_heads, "queries": "all", "global_tokens": 1, **widths}
            outputs = self.node(tensors, hidden, local.value, of_others)
            mixed = outputs["output"].index_put((self.cu_seqlens[:-1].long(),), mixed)
            if self.importance is not None:
                self.importance = torch.maximum(self.importance, outputs["importance"])
        self.layer += 1
        return mixed

    def node(
        self, tensors: Mapping[str, Tensor | None], hidden: Tensor, value: nn.Linear, attributes: Mapping[str, Any]
    ) -> dict[str, Tensor]:
        """One node of the attention operator.

        Args:
            tensors: inputs by name, those that the operator does not have are left out.
            hidden: `[T, C]`, what the value projection reads.
            value: the value projection.
            attributes: by name, likewise; those that follow from the layer are added.

        Returns:
            Outputs by name; `importance` only where the layer selects.
        """
        selects = self.selection.exponent(self.layer) > 0
        known = {item.name for item in self.operator.attributes}
        values = {
            "scale": 0.0,
            "window": 0,
            "global_tokens": 0,
            **self.attributes,
            "layer": self.layer,
            "importance": self.selection.importance if selects else "none",
            **attributes,
        }
        merged = {UNMERGED_CU_SEQLENS.name: self.inputs["cu_seqlens"]} if self.has_means else {}
        inputs: dict[str, Tensor | None] = {**self.inputs, "cu_seqlens": self.cu_seqlens, **merged, **tensors}
        names = [item.name for item in self.operator.inputs]
        if "hidden" in names:
            weight = value.weight.t()
            bias = value.bias if value.bias is not None else torch.zeros(weight.shape[1], dtype=weight.dtype)
            inputs |= {"hidden": hidden, "value_weight": weight, "value_bias": bias}
        else:
            inputs["value"] = value(hidden)
        attributes = {name: value for name, value in values.items() if name in known}
        result = self.form(self.operator)(*(inputs.get(name) for name in names), **attributes)
        results = result if isinstance(result, tuple) else (result,)
        outputs = dict(zip((item.name for item in self.operator.outputs), results, strict=True))
        if "value_flops" in outputs:
            self.has_value_flops = True
            if values["queries"] == "all":
                self.value_flops.append(outputs["value_flops"])
        return outputs if selects else {name: tensor for name, tensor in outputs.items() if name != "importance"}

    @property
    def has_means(self) -> bool:
        """Whether the last row of a sequence may stand for several."""
        return self.selection.merges and self.cu_seqlens is not self.inputs["cu_seqlens"]

    @property
    def position_ids(self) -> Tensor:
        """int64 `[T]`, ascending in each sequence, of the rows that there are now."""
        return self.following["position_ids"]

    @property
    def true_positions(self) -> Tensor | None:
        """int64 `[T]`; None where every row is there, so that distances between rows are those between positions."""
        return None if self.cu_seqlens is self.inputs["cu_seqlens"] else self.position_ids

    def behind_text(self, position_ids: Tensor) -> Tensor:
        """int64 `[T]`: a row for several, which is its sequence's last, stands behind the text's last token.

        Any place is as good for rotation; in windows and for distances this one keeps most labels of those that ascend
        (benchmarks/models/keep.md).

        Args:
            position_ids: int64 `[T]`, right for all other rows. No sequence is empty.
        """
        before, now = self.inputs["cu_seqlens"], self.cu_seqlens
        last = now[1:].long() - 1
        is_mean = before[1:] - before[:-1] > now[1:] - now[:-1]
        behind = self.inputs["position_ids"][before[1:].long() - 1] + 1
        return position_ids.index_put((last,), torch.where(is_mean, behind, position_ids[last]))

    def follow(self, name: str, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """A tensor beside the hidden rows that follows from the positions, computed when it is first asked for.

        Args:
            name: what it is kept under.
            compute: from position ids int64 `[T]` to `[T, ...]`.

        Returns:
            `[T, ...]`, of the rows that there are now.
        """
        if name not in self.following:
            self.following[name] = compute(self.position_ids)
        return self.following[name]

    def kept_lengths(self) -> Tensor:
        """int32 `[B+1]`, of the rows that go on behind the attention before."""
        exponent = self.selection.exponent(self.layer - 1)
        knobs = (self.inputs[knob.name] for knob in LENGTHS.knobs)
        kept: Tensor = self.form(LENGTHS)(self.cu_seqlens, *knobs, exponent=exponent, merge=self.selection.merge)
        return kept

    def select(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The rows that go on in every sequence, by the importance from the attention before.

        Args:
            rows: `[T, C]`.

        Returns:
            Of T rows the K that go on, in their order: `[K, C]`, and their places int64 `[K]`.
        """
        kept_cu_seqlens = self.kept_lengths()
        kept, places = self.form(SELECT)(rows, self.importance, self.cu_seqlens, kept_cu_seqlens)
        self.following = {name: tensor.index_select(0, places) for name, tensor in self.following.items()}
        self.cu_seqlens = kept_cu_seqlens
        self.importance = None
        return kept, places

    def merge(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """As `select`, of several tensors `[T, C]`, with one row more in each sequence: the mean of those left out."""
        kept_cu_seqlens, unmerged = self.kept_lengths(), self.inputs["cu_seqlens"]
        # Each node chooses the same rows: finding them costs less than to gather by places, which a mean does not have.
        chosen = [
            self.form(SELECT)(rows, self.importance, self.cu_seqlens, kept_cu_seqlens, unmerged) for rows in tensors
        ]
        for rows, _ in chosen[1:]:
            torch._check(rows.shape[0] == chosen[0][0].shape[0])  # the exporter knows neither number
        self.cu_seqlens = kept_cu_seqlens
        self.importance = None
        self.following = {"position_ids": self.behind_text(self.position_ids[chosen[0][1]])}
        return tuple(rows for rows, _ in chosen)

    def drop(self, mixed: Tensor, *beside: Tensor) -> tuple[Tensor, ...]:
        """Leaves out, behind attention, the rows that no later layer sees; where others rejoin, nothing is left out.

        Args:
            mixed: attention's output `[T, H * D]`.
            beside: what is added to it later, such as the residual, `[T, C]` each.

        Returns:
            The rows of all that go on, `[K, H * D]` and `[K, C]`; with merging, the means of the others among them.
        """
        if self.importance is None or not self.only_first:
            return mixed, *beside
        if self.selection.merges:
            return self.merge(mixed, *beside)
        mixed, places = self.select(mixed)
        return mixed, *(rows.index_select(0, places) for rows in beside)

    def freeze(self, rows: Tensor) -> Tensor:
        """Leaves out, behind the attention's residual, the rows that stay as they are until they rejoin.

        Args:
            rows: `[T, C]`.

        Returns:
            The rows that go on, `[K, C]`; all of them where the model classifies by the first token. With merging, the
            means of the others are among them, and none rejoins.
        """
        if self.importance is None or self.only_first:
            return rows
        if self.selection.merges:
            return self.merge(rows)[0]
        kept, places = self.select(rows)
        self.frozen.append((rows, places))
        return kept

    def rejoin(self, hidden: Tensor) -> Tensor:
        """Puts frozen rows, if there are any, back between those that went on: `[K, C]` to `[T, C]`."""
        if self.selection.merges:
            return hidden
        for rows, places in reversed(self.frozen):
            hidden = rows.index_put((places,), hidden)
        self.frozen = []
        self.cu_seqlens = self.inputs["cu_seqlens"]
        return hidden
