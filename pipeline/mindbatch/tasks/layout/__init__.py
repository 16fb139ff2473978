"""`mindbatch layout`: what each rank holds of a model, and MindSpore's strategy files of it."""
