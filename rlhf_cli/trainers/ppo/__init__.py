"""Run PPO on TRL's rollouts: the critic, the KL penalty, advantages per token."""
