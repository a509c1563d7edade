"""What collecting costs a training step."""
