"""Gets the model onto the hosts: from its first source to one, from there to all. No pyinfra."""
