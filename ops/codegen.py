"""Writes `operators.gen.h`: what each `<operator>/spec.py` says, for C++.

Beside it `<operator>_rule.gen.h`, the constants of `<operator>/rule.py`, for operators that have one. Runs at build
time; its output is never committed.

usage: python -m attenuator.ops.codegen OUTPUT
"""

import sys
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from types import ModuleType

from attenuator.ops import OPERATORS, has_part, package, part
from attenuator.ops.spec import SEED_HIGH, Attribute, Knob, Operator, Tensor

CPP_TYPES = {"float": "float", "int32": "std::int32_t", "int64": "std::int64_t"}
ELEMENT_TYPES = {
    "float": "ElementType::kFloat",
    "int32": "ElementType::kInt32",
    "int64": "ElementType::kInt64",
    "uint8": "ElementType::kUint8",
}


def pascal(name: str) -> str:
    """`cu_seqlens` to `CuSeqlens`."""
    return "".join(word.capitalize() for word in name.split("_"))


def boolean(value: bool) -> str:
    """A C++ literal."""
    return "true" if value else "false"


def number(value: float, cpp_type: str) -> str:
    """A C++ literal of a knob's bound."""
    return f"{float(value)!r}f" if cpp_type == "float" else str(int(value))


def input_row(tensor: Tensor) -> str:
    """One `InputSpec`."""
    return (
        f'{{"{tensor.name}", {ELEMENT_TYPES[tensor.dtype]}, {len(tensor.axes)}, '
        f"{boolean(tensor.host)}, {boolean(tensor.optional)}, {boolean(tensor.data)}}}"
    )


def output_row(operator: Operator, tensor: Tensor) -> str:
    """One `OutputSpec` with the rule for each of its axes."""
    names = [item.name for item in operator.inputs]
    rules = ", ".join("{-1, 0}" if rule is None else f"{{{names.index(rule[0])}, {rule[1]}}}" for rule in tensor.shape)
    start = (
        f'"{tensor.name}", {ELEMENT_TYPES[tensor.dtype]}, {len(tensor.axes)}, '
        f"{boolean(tensor.optional)}, {boolean(tensor.data)}"
    )
    return f"{{{start}, {{{{{rules}}}}}}}"


def knob_row(knob: Knob) -> str:
    """One `Knob` constant."""
    cpp = CPP_TYPES[knob.dtype]
    values = ", ".join(number(value, cpp) for value in (knob.low, knob.high, knob.default, knob.exact))
    return f'  static constexpr Knob<{cpp}> k{pascal(knob.name)}{{"{knob.name}", {values}}};'


def attribute_bounds(attribute: Attribute) -> str:
    """The bounds of a `float` that has any."""
    name, bounds = f"k{pascal(attribute.name)}", (number(attribute.low, "float"), number(attribute.high, "float"))
    return f"  static constexpr float {name}Low = {bounds[0]}, {name}High = {bounds[1]};"


def attribute_member(attribute: Attribute) -> str:
    """A member of the `Attributes` struct."""
    if attribute.kind == "string":
        return f"    {pascal(attribute.name)} {attribute.name};"
    return f"    {'float' if attribute.kind == 'float' else 'std::int64_t'} {attribute.name};"


def attribute_read(attribute: Attribute) -> str:
    """The statement that reads an attribute through any reader."""
    if attribute.kind == "string":
        choices = ", ".join(f'"{choice}"' for choice in attribute.choices)
        index = attribute.choices.index(str(attribute.default))
        value = f'static_cast<{pascal(attribute.name)}>(reader.Choice("{attribute.name}", {{{choices}}}, {index}))'
    elif attribute.kind == "float":
        value = f'reader.Float("{attribute.name}", {float(attribute.default or 0.0)!r}f)'
    else:
        default = "std::nullopt" if attribute.default is None else str(attribute.default)
        value = f'reader.Int("{attribute.name}", {attribute.low}, {attribute.high}, {default})'
    return f"    attributes.{attribute.name} = {value};"


def operator_struct(operator: Operator) -> str:
    """The struct of constants and the attribute reader of one operator."""
    inputs = ",\n      ".join(input_row(tensor) for tensor in operator.inputs)
    outputs = ",\n      ".join(output_row(operator, tensor) for tensor in operator.outputs)
    enums = [
        f"  enum class {pascal(item.name)} {{ {', '.join('k' + pascal(choice) for choice in item.choices)} }};"
        for item in operator.attributes
        if item.kind == "string"
    ]
    input_names = ", ".join(f"k{pascal(tensor.name)}Input" for tensor in operator.inputs)
    output_names = ", ".join(f"k{pascal(tensor.name)}Output" for tensor in operator.outputs)
    lines = [
        f"struct {operator.name} {{",
        f'  static constexpr const char* kName = "{operator.name}";',
        f"  static constexpr int kVersion = {operator.version};",
        f"  static constexpr bool kHost = {boolean(operator.host)};",
        f"  static constexpr bool kOwnIsa = {boolean(operator.own_isa)};",
        f"  enum Input : std::size_t {{ {input_names} }};",
        f"  enum Output : std::size_t {{ {output_names} }};",
        f"  static constexpr std::array<InputSpec, {len(operator.inputs)}> kInputs{{{{\n      {inputs}}}}};",
        f"  static constexpr std::array<OutputSpec, {len(operator.outputs)}> kOutputs{{{{\n      {outputs}}}}};",
        *(knob_row(knob) for knob in operator.knobs),
        *(attribute_bounds(item) for item in operator.attributes if item.kind == "float" and item.bounded),
        *enums,
        "  struct Attributes {",
        *(attribute_member(item) for item in operator.attributes),
        "  };",
        "  template <class Reader>",
        "  static Attributes Read(const Reader& reader) {",
        "    Attributes attributes{};",
        *(attribute_read(item) for item in operator.attributes),
        "    return attributes;",
        "  }",
        "};",
    ]
    return "\n".join(lines)


def operator_list(macro: str, operators: Iterable[Operator]) -> str:
    """A macro that applies another one to each of these operators."""
    return " ".join([f"#define {macro}(X)", *(f"X({operator.name})" for operator in operators)])


def header() -> str:
    """The whole header."""
    structs = "\n\n".join(operator_struct(operator) for operator in OPERATORS)
    on_cuda = [operator for operator in OPERATORS if resources.files(package(operator.key)).joinpath("cuda").is_dir()]
    return (
        "// Generated by ops/codegen.py from ops/*/spec.py; do not edit.\n#pragma once\n"
        "#include <array>\n#include <cstddef>\n#include <cstdint>\n#include <optional>\n\n"
        '#include "ops/common/spec.h"\n\n'
        f"{operator_list('ATTENUATOR_OPERATORS', OPERATORS)}\n"
        "// Those with a folder cuda/.\n"
        f"{operator_list('ATTENUATOR_CUDA_OPERATORS', on_cuda)}\n\nnamespace attenuator::spec {{\n\n"
        f"inline constexpr std::int64_t kSeedHigh = {SEED_HIGH};\n\n{structs}\n\n}}  // namespace attenuator::spec\n"
    )


def rule_header(key: str, rule: ModuleType) -> str:
    """The header of an operator's rule: its upper-case numbers, `COLUMN_COST` as `kColumnCost`."""
    constants = {name: value for name, value in vars(rule).items() if name.isupper() and isinstance(value, int | float)}
    lines = [
        f"inline constexpr {'double' if isinstance(value, float) else 'int'} k{pascal(name)} = {value!r};"
        for name, value in constants.items()
    ]
    return (
        f"// Generated by ops/codegen.py from ops/{key}/rule.py; do not edit.\n#pragma once\n\n"
        f"namespace attenuator::{key} {{\n\n" + "\n".join(lines) + f"\n\n}}  // namespace attenuator::{key}\n"
    )


def write(path: Path, text: str) -> None:
    """Writes a header, only where its content changes, so that nothing is rebuilt for nothing."""
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main() -> None:
    """Writes the headers."""
    path = Path(sys.argv[1])
    write(path, header())
    for operator in OPERATORS:
        if has_part(operator.key, "rule"):
            rule = part(operator.key, "rule")
            write(path.with_name(f"{operator.key}_rule.gen.h"), rule_header(operator.key, rule))


if __name__ == "__main__":
    main()
