"""What Airflow loads: the dashboard with its page in the navigation, and the link to a run's card."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from paddle_cluster.card_link import RunCardLink
from paddlewheel_dashboard.lazy import LazyApp


class PaddlewheelPlugin(AirflowPlugin):
    """Registers the parts of Paddlewheel that live in Airflow's own pages."""

    name = "paddlewheel"
    fastapi_apps = [{"app": LazyApp(), "url_prefix": "/paddlewheel", "name": "Paddlewheel"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {
            "name": "Paddlewheel",
            "href": "paddlewheel/",
            "url_route": "paddlewheel-runs",
            "destination": "nav",
            "category": "browse",
        }
    ]
    operator_extra_links = [RunCardLink()]  # noqa: RUF012
