"""What runs MindFormers' own models. The only room that may import mindformers."""
