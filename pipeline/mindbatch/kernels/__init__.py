"""Operations, and what runs them: C++, NumPy, and MindSpore's operators for Ascend."""
