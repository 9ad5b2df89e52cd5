"""gunicorn, but modules are not imported from the current folder: `python -P -m lmi_server.http.gunicorn_main`."""

from __future__ import annotations

from gunicorn.app.wsgiapp import WSGIApplication


class _Application(WSGIApplication):
    def chdir(self) -> None:
        """Stay where it is, and leave `sys.path` as it is: the current folder may be that of a model."""


if __name__ == "__main__":
    _Application("%(prog)s [OPTIONS] [APP_MODULE]", prog="gunicorn").run()
