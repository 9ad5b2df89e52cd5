"""Run gunicorn without imports from the current folder: `python -P -m lmi_server.http.gunicorn_main`."""

from __future__ import annotations

from gunicorn.app.wsgiapp import WSGIApplication


class _Application(WSGIApplication):
    def chdir(self) -> None:
        """Do not change the folder or `sys.path`: the current folder may be that of a model."""


if __name__ == "__main__":
    _Application("%(prog)s [OPTIONS] [APP_MODULE]", prog="gunicorn").run()
