"""Defines markers that several formats of messages share."""

TOOL_CALL, TOOL_CALL_END = "<tool_call>", "</tool_call>"
THINK = ("<think>", "</think>")
PYTHON_START = ("<|python_start|>", "<|python_end|>")
CHATML_ENDS = ("<|im_end|>", "<|endoftext|>")
LLAMA_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|eot|>", "<|eom|>", *CHATML_ENDS)
