"""Commands in the documentation that no test runs, each with the reason.

An entry applies to the commands that start with it; the longest match wins. Tests run every command without an entry,
and fail for an entry that matches no command.
"""

from __future__ import annotations

NOT_RUN = {
    "aws ": "needs an AWS account",
    "docker ": "needs Docker and base images; tests/container/test_image.py checks the Dockerfile and the entry script",
    "git clone ": "needs a repository to clone; tests/verify/fresh_clone.py clones this one",
    "make ": "installs, or takes minutes to hours; a dry run (make -n) shows that target and variables exist",
    "lmi serve ": "does not end; these tests load the configuration, and start their server with this command",
    ".venv/bin/lmi serve ": "as lmi serve",
    "lmi bench http://127.0.0.1:8080 --find-rate ": "takes minutes; tests/container/measure/bench tests it",
    "lmi endpoint ": "does not end; tests/e2e/test_endpoint.py runs it",
    "curl -s http://127.0.0.1:9000/": "needs lmi endpoint; tests/container/endpoint reads the figures",
    "curl -s http://127.0.0.1:8080/models": "needs several models; tests/e2e/test_several_models.py calls this route",
    "export AWS_ENDPOINT_URL_": "sets variables that the tests of the Python programs set",
    "lmi deploy ./": "needs a platform; tests/container/deploy/test_on_endpoint.py runs it against lmi endpoint",
    "lmi deploy --variant ": "as lmi deploy ./",
    "lmi deploy properties_examples/": "tests/container/deploy/test_deploy_command.py compares the output",
    "lmi compare ": "takes minutes; tests/e2e/test_compare.py runs it on a small model",
    "lmi tune ": "takes minutes; tests/container/measure/tune runs it with fake servers",
    "lmi simulate properties_examples/llama-dummy --calibrate ": "needs a trace;"
    " tests/container/measure/simulate/test_calibration.py writes one",
    "lmi simulate properties_examples/aws-post-dynamic ": "needs Falcon-40B's config.json;"
    " tests/container/measure/simulate/test_aws_post.py has it",
    "lmi prepare s3://": "needs a bucket; tests/e2e/test_s3.py runs it on an S3 server",
    ".venv/bin/pre-commit ": "changes the hooks of the checkout",
    ".venv/bin/python -m pytest ": "runs these tests",
    ".venv/bin/python -m tests.verify.": "takes minutes to hours; make verify runs it",
}


def entry(command: str) -> str | None:
    """The longest entry of `NOT_RUN` that the command starts with. None: the command is run."""
    return max((start for start in NOT_RUN if command.startswith(start)), key=len, default=None)
