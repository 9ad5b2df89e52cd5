"""Commands of the documentation that no test runs as they stand, each with the reason.

The beginning of a command decides, the longest one where several fit. An entry that fits no command fails a test, and
so does a command that cannot run and has no entry: it is run.
"""

from __future__ import annotations

NOT_RUN = {
    "aws ": "needs an AWS account",
    "docker ": "needs Docker and base images; tests/container/test_image.py checks the Dockerfile and the entry script",
    "make ": "installs, or takes minutes to hours; a dry run (make -n) shows that target and variables exist",
    "lmi serve ": "does not end; the configuration is loaded, and the server of these tests is started by this command",
    ".venv/bin/lmi serve ": "as lmi serve",
    "lmi bench http://127.0.0.1:8080 --find-rate ": "takes minutes; tests/container/measure/bench has its tests",
    "lmi endpoint ": "does not end; tests/e2e/test_endpoint.py runs it",
    "curl -s http://127.0.0.1:9000/": "needs lmi endpoint; tests/container/endpoint asks for its figures",
    "curl -s http://127.0.0.1:8080/models": "needs several models; tests/e2e/test_several_models.py has them",
    "export AWS_ENDPOINT_URL_": "sets what the programs of the pages are run with",
    "lmi deploy ./": "needs a platform; tests/container/deploy/test_on_endpoint.py runs it on that of lmi endpoint",
    "lmi deploy --variant ": "as lmi deploy ./",
    "lmi compare ": "takes minutes; tests/e2e/test_compare.py runs it on a small model",
    "lmi tune ": "takes minutes; tests/container/measure/tune runs it with made-up servers",
    "lmi simulate properties_examples/llama-dummy --calibrate ": "needs a trace;"
    " tests/container/measure/simulate/test_calibration.py makes one",
    "lmi simulate properties_examples/aws-post-dynamic ": "needs Falcon-40B's config.json;"
    " tests/container/measure/simulate/test_aws_post.py has it",
    "lmi prepare s3://": "needs a bucket; tests/e2e/test_s3.py runs it on an S3 server",
    ".venv/bin/pre-commit ": "changes the hooks of the checkout",
    ".venv/bin/python -m pytest ": "is this test run",
    ".venv/bin/python -m tests.verify.": "takes minutes to hours; make verify runs it",
}


def entry(command: str) -> str | None:
    """The beginning in `NOT_RUN` that fits; None: the command is run."""
    return max((start for start in NOT_RUN if command.startswith(start)), key=len, default=None)
