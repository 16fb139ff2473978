"""Matrices of FP4 (E2M1) with scales for groups: NVFP4 and MXFP4, one by one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mindbatch.checkpoint.error_lines import raise_if_any
from mindbatch.checkpoint.formats.floats import Array
from mindbatch.checkpoint.quantised.layout import (
    OF_ACTIVATIONS,
    GroupedMatrix,
    Needed,
    QuantisedLayout,
    scale_errors,
)
from mindbatch.checkpoint.quantised.small_floats import (
    E2M1_PAIRS,
    E4M3,
    MAX_OF_E2M1,
    STORED_E4M3,
    STORED_EXPONENTS,
    UNIT_OF_E2M1,
    from_exponents,
    from_pairs,
)
from mindbatch.kernels.codes import CodeType


@dataclass(frozen=True)
class Mxfp4Matrix(QuantisedLayout):
    """Codes [outputs, inputs / 2] of bytes, and an exponent for each 32 inputs.

    main: end of the name of the codes, of which the first of two is in the lower bits.
    """

    main: str

    marks = scales = "weight_scale"
    group_size = 32
    title = "MXFP4"

    def size(self, main: tuple[int, ...]) -> tuple[int, int]:
        return main[0], main[1] * 2

    def size_error(self, outputs: int, inputs: int) -> str | None:
        is_whole = inputs % self.group_size == 0
        return None if is_whole else f"{inputs} inputs; must be a multiple of {self.group_size}"

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        groups = self.groups(inputs)
        return {
            self.main: Needed(("U8",), (outputs, inputs // 2), is_large=True),
            self.scales: Needed(self.scale_dtypes, (outputs, groups), is_large=True),
            **OF_ACTIVATIONS,
        }

    @property
    def scale_dtypes(self) -> tuple[str, ...]:
        return STORED_EXPONENTS

    def matrix(self, tensors: Mapping[str, Array], outputs: int, inputs: int) -> GroupedMatrix:
        pairs, scales = tensors[self.main], self.decoded(tensors)
        raise_if_any([*scale_errors(self.scales, scales)])
        return GroupedMatrix(
            (outputs, inputs), lambda part: from_pairs(pairs[part], E2M1_PAIRS), scales, 0, unit=UNIT_OF_E2M1
        )

    def code_type(self, small: Mapping[str, Array], inputs: int) -> CodeType | None:
        return self.coded("float4", small, inputs)

    def decoded(self, tensors: Mapping[str, Array]) -> Array:
        """The scales in float32."""
        return from_exponents(tensors[self.scales], MAX_OF_E2M1)


@dataclass(frozen=True)
class Nvfp4Matrix(Mxfp4Matrix):
    """Codes as there; a scale of E4M3 for each 16 inputs, and one of float32 for the matrix.

    marks: end of the name of the matrix's scale.
    is_divisor: True if scales are divided by that, and not multiplied with it.
    """

    marks: str = "weight_scale_2"
    is_divisor: bool = False

    scales = "weight_scale"
    group_size = 16
    title = "NVFP4"

    def needed(self, outputs: int, inputs: int) -> Mapping[str, Needed]:
        return {**super().needed(outputs, inputs), self.marks: Needed(("F32",), (1,))}

    @property
    def scale_dtypes(self) -> tuple[str, ...]:
        return (STORED_E4M3,)

    def value_errors(self, small: Mapping[str, Array], outputs: int, inputs: int) -> Iterator[str]:
        yield from super().value_errors(small, outputs, inputs)
        if self.marks in small:
            yield from scale_errors(self.marks, small[self.marks])

    def decoded(self, tensors: Mapping[str, Array]) -> Array:
        scales, of_all = E4M3[tensors[self.scales]], tensors[self.marks]
        return scales / of_all if self.is_divisor else scales * of_all
