"""Distillation on top of grpo_jax, and the command line of both."""
