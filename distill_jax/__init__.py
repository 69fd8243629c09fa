"""The command line, and the place of distillation on top of grpo_jax."""
