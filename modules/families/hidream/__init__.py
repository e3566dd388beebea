"""HiDream I1: a flow-matching transformer with a mixture of experts, and four text encoders (HiDream.ai, 2025)."""
