"""The graph: planner → executor → summarizer, and back to the planner while the evidence does not
suffice."""

import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langsmith import tracing_context

from agentic_iqa_local.config import Request, Settings
from agentic_iqa_local.errors import one_line
from agentic_iqa_local.images.reading import ImageError
from agentic_iqa_local.nodes.executor import executor_node
from agentic_iqa_local.nodes.planner import planner_node
from agentic_iqa_local.nodes.query import choices_in
from agentic_iqa_local.nodes.replanning import replan_limit
from agentic_iqa_local.nodes.summarizer import summarizer_node
from agentic_iqa_local.nodes.workbench import Workbench
from agentic_iqa_local.services import Observer, Services, load_services
from agentic_iqa_local.state import AgenticIQAState

logger = logging.getLogger(__name__)

Graph = CompiledStateGraph[AgenticIQAState, Any]


def decide_next_node(state: AgenticIQAState) -> Literal["planner", "__end__"]:
    """Conditional edge after the Summarizer: "planner" if a replan is needed and iterations < max,
    else "__end__"."""
    result = state.get("summarizer_result")
    need_replan = result is not None and result.need_replan and not state.get("error")
    iteration = state.get("iteration_count", 0)
    limit = replan_limit(state)
    decision = "planner" if need_replan and iteration < limit else "__end__"
    logger.info(
        "need_replan=%s, iteration_count=%d, max_replan_iterations=%d, decision=%s",
        need_replan, iteration, limit, decision,
    )  # fmt: skip
    if result and decision == "planner":
        logger.info("Replanning triggered: %s", result.replan_reason)
        logger.info("Iteration %d/%d", iteration, limit)
    elif need_replan:
        logger.warning("Max replanning iterations (%d) reached", limit)
        logger.warning("Continuing with current evidence despite need_replan=true")
        if iteration > 1:
            logger.warning(
                "All %d passes asked for a replan: a potential logic issue in the Summarizer",
                iteration,
            )
    return decision


def _observed(role: str, node: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The node, which tells the assessment's observer when it begins and ends. What it raises
    becomes an error of the state; a lack of memory is raised, since a batch knows what to do with
    it."""

    def run(
        state: AgenticIQAState,
        config: RunnableConfig | None = None,
        runtime: Runtime[Any] | None = None,
    ):
        observer = runtime.context.observer if runtime and runtime.context else Observer()
        count = state.get("iteration_count", 0) + 1
        observer.step(role, "started", count)
        try:
            changes = node(state, config, runtime)
        except MemoryError:
            raise
        except Exception as error:
            logger.exception("%s failed", role.capitalize())
            changes = {"error": one_line(f"{role.capitalize()}: {type(error).__name__}: {error}")}
        observer.step(role, "finished", count)
        return changes

    return run


@functools.cache
def build_graph(with_summarizer: bool = True) -> Graph:
    """The graph, compiled once. Without the Summarizer it ends after the Executor and never
    replans."""
    graph = StateGraph[AgenticIQAState, Any](AgenticIQAState)
    graph.add_node("planner", _observed("planner", planner_node))
    graph.add_node("executor", _observed("executor", executor_node))
    graph.add_edge(START, "planner")
    graph.add_edge("planner", "executor")
    if not with_summarizer:
        graph.add_edge("executor", END)
        return graph.compile()
    graph.add_node("summarizer", _observed("summarizer", summarizer_node))
    graph.add_edge("executor", "summarizer")
    graph.add_conditional_edges(
        "summarizer", decide_next_node, {"planner": "planner", "__end__": END}
    )
    return graph.compile()


def run_graph(
    state: AgenticIQAState, bench: Workbench, graph: Graph | None = None
) -> AgenticIQAState:
    """Runs the graph on a workbench and returns the final state."""
    # three nodes a round, and two rounds more than the limit
    config: RunnableConfig = {"recursion_limit": 3 * (replan_limit(state) + 2)}
    # LangChain would follow environment variables to a tracing server
    with tracing_context(enabled=False):
        final: Any = (graph or build_graph()).invoke(state, config, context=bench)
    return final


def initial_state(
    query: str,
    image_path: str,
    reference_path: str | None = None,
    max_replan_iterations: int | None = None,
    choices: Sequence[str] | None = None,
    box: Any = None,
    *,
    settings: Settings | None = None,
) -> AgenticIQAState:
    """The state that a run starts from. A limit of None is that of the settings. Without `choices`
    those that the query itself lists are taken. `box` as for `config.Request`. Raises
    ValueError."""
    asked = {"choices": choices, "box": box, "max_replan_iterations": max_replan_iterations}
    request = Request.of(asked)
    limit = request.max_replan_iterations
    if limit is None:
        limit = (settings or Settings()).max_replan_iterations
    state = AgenticIQAState(
        query=query,
        image_path=str(image_path),
        iteration_count=0,
        max_replan_iterations=limit,
        replan_history=[],
    )
    if reference_path is not None:
        state["reference_path"] = str(reference_path)
    listed = request.choices or choices_in(query)
    if listed:
        state["choices"] = list(listed)
    if request.box:
        state["box"] = request.box
    return state


def run_pipeline(
    query: str,
    image_path: str,
    reference_path: str | None = None,
    max_replan_iterations: int | None = None,
    choices: Sequence[str] | None = None,
    *,
    box: Any = None,
    services: Services | None = None,
) -> AgenticIQAState:
    """Assesses one image and returns the final state; a failure is in `state["error"]` (the
    Executor's in `executor_evidence.error`, the Summarizer's in `summarizer_result.error`), not an
    exception, except MemoryError.

    `max_replan_iterations` n allows n − 1 replans: the Summarizer counts its request before the
    edge compares, so 0 and 1 never replan and 2 replans at most once. None is the configuration's
    limit, which is 2 unless it says otherwise. `box` says where the regions of the query lie, as
    for `config.Request`.
    """
    services = services or load_services()
    asked = max_replan_iterations, choices, box
    state = initial_state(query, image_path, reference_path, *asked, settings=services.settings)
    try:
        bench = Workbench(services, state["image_path"], state.get("reference_path"))
    except ImageError as error:
        return {**state, "error": str(error)}
    with closing(bench):
        return run_graph(state, bench)


def visualize_graph() -> str:
    """A Mermaid diagram of the graph; its edge back to the planner shows the check against
    max_replan_iterations."""
    return """graph TD
    START([START]) --> planner[Planner]
    planner --> executor[Executor]
    executor --> summarizer[Summarizer]
    summarizer -->|need_replan=true & iter<max| planner
    summarizer -->|need_replan=false or iter>=max| END([END])"""
