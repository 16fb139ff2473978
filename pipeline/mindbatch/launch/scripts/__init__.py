"""Implementation of run_dist_gen.sh and msrun_launcher.sh: MindFormers' arguments, taken literally."""
