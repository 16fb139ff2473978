"""The kernels on Ascend NPUs: MindSpore's fused operators, the steps they take and their limits."""
