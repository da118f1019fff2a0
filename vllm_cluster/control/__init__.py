"""What the machine that runs pyinfra contributes: image archive, model, secrets."""
