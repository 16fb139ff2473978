"""The parts of a decoder, each knowing its slice of a tensor-parallel model."""
