//! A graph as text that `dot` draws.

use std::fmt::Write as _;

use crate::error::Result;
use crate::graph::node::Work;
use crate::graph::store::Store;
use crate::handle::Graph;

/// What a box says.
fn label(work: &Work) -> String {
    match work {
        Work::Kernel(kernel) => {
            let [x, y, z] = kernel.config.grid;
            let [a, b, c] = kernel.config.block;
            format!("{}\\n<<<({x},{y},{z}),({a},{b},{c}),{}>>>", kernel.function.info.name, kernel.config.shared_bytes)
        }
        Work::Copy { copy, .. } => format!("MEMCPY\\n{} x {} x {} bytes", copy.width, copy.height, copy.depth),
        Work::Fill { fill, .. } => format!("MEMSET\\n{} x {} of {} bytes", fill.width, fill.height, fill.element),
        Work::Host(function) => format!("HOST\\n{:#x}", function.function),
        Work::Graph(_) => "GRAPH".into(),
        Work::Empty => "EMPTY".into(),
        Work::WaitEvent(event, _) => format!("EVENT_WAIT\\n{:#x}", event.0),
        Work::RecordEvent(event, _) => format!("EVENT_RECORD\\n{:#x}", event.0),
        Work::Alloc(alloc) => format!("MEM_ALLOC\\n{} bytes at {:#x}", alloc.bytes, alloc.block.base),
        Work::Free(block) => format!("MEM_FREE\\n{:#x}", block.base),
        Work::MemOps { operations, .. } => format!("BATCH_MEM_OP\\n{} operations", operations.len()),
        Work::Conditional(conditional) => {
            format!("CONDITIONAL\\n{:?} {:#x}", conditional.choice, conditional.condition.handle())
        }
    }
}

/// A graph, and those in it as clusters.
///
/// # Errors
/// `INVALID_VALUE` if it is none.
pub(crate) fn draw(store: &Store, graph: Graph) -> Result<String> {
    let mut text = String::from("digraph dot {\n");
    draw_into(store, graph, &mut text)?;
    text.push_str("}\n");
    Ok(text)
}

fn draw_into(store: &Store, graph: Graph, text: &mut String) -> Result<()> {
    let state = store.graph(graph)?;
    let id = state.id;
    let _ = writeln!(text, "subgraph cluster_{id} {{\nlabel=\"graph_{id}\" graph[style=\"dashed\"];");
    for node in &state.nodes {
        let node = store.node(*node)?;
        // A kernel's name is the program's: a quotation mark in it ends nothing.
        let label = label(&node.work).replace('"', "\\\"");
        let _ =
            writeln!(text, "\"graph_{id}_node_{}\"[shape=\"box\" label=\"{}\\n{label}\"];", node.number, node.number);
        for child in node.work.graphs() {
            draw_into(store, *child, text)?;
        }
    }
    for (from, to, _) in store.edges(graph)? {
        let (from, to) = (store.node(from)?.number, store.node(to)?.number);
        let _ = writeln!(text, "\"graph_{id}_node_{from}\" -> \"graph_{id}_node_{to}\";");
    }
    text.push_str("}\n");
    Ok(())
}
