//! The matrix as Markdown, and as one self-contained HTML page for desktop and phone.

use std::fmt::Write as _;

use super::matrix::{MODELS, Matrix, MatrixLine};

const NOTE: &str = "qkvault's rules give these answers. They were tested against cuDNN itself without a GPU; the H200 alone was also verified on \
                    a GPU. `qkvault probe --matrix NAME` writes this page, of other models, GPUs and versions too.";

/// The matrix in words: what runs everywhere, and the codes of the rest. HTML and JSON have every cell.
pub(super) fn markdown(matrix: &Matrix) -> String {
    let Matrix { gpus, versions, groups, .. } = matrix;
    let mut text = format!(
        "# What runs where\n\n{NOTE}\n\n{} with cuDNN {}. Every answer with its reasons: [support.html](support.html), \
         as data [support.json](support.json).\n",
        gpus.join(", "),
        versions.join(", ")
    );
    for group in groups {
        let (good, others): (Vec<&MatrixLine>, Vec<&MatrixLine>) =
            group.rows.iter().partition(|row| row.cells.iter().flatten().all(Option::is_none));
        // What runs everywhere goes by name where names say what it is.
        let good: Vec<&str> = good.iter().map(|row| row.name.as_str()).collect();
        let good = if group.name == MODELS { "all that is not named here".to_owned() } else { good.join("; ") };
        let _ = write!(text, "\n## {}\n\nEverywhere: {good}.\n", group.name);
        if !others.is_empty() {
            text.push_str("\n| | refused |\n| --- | --- |\n");
        }
        for row in others {
            let _ = writeln!(text, "| {} | {} |", row.name, refusals(matrix, row).join("; "));
        }
    }
    text
}

/// Which codes refuse an attention, each with the GPUs and versions.
fn refusals(matrix: &Matrix, row: &MatrixLine) -> Vec<String> {
    let codes = |answer: Option<usize>| {
        answer.into_iter().flat_map(|number| matrix.reasons[number].iter()).filter_map(|reason| code(reason))
    };
    let mut all: Vec<&str> = row.cells.iter().flatten().flat_map(|answer| codes(*answer)).collect();
    all.sort_unstable();
    all.dedup();
    let mut found = Vec::new();
    for one in all {
        // GPUs that are refused under the same versions are told together.
        let mut places: Vec<(Vec<&str>, Vec<&str>)> = Vec::new();
        for (gpu, cell) in matrix.gpus.iter().zip(&row.cells) {
            let has = |answer: &Option<usize>| codes(*answer).any(|code| code == one);
            let versions: Vec<&str> =
                matrix.versions.iter().zip(cell).filter(|(_, answer)| has(answer)).map(|(v, _)| v.as_str()).collect();
            match places.iter_mut().find(|(_, known)| *known == versions) {
                _ if versions.is_empty() => {}
                Some((gpus, _)) => gpus.push(gpu),
                None => places.push((vec![gpu], versions)),
            }
        }
        let place = |(gpus, versions): (Vec<&str>, Vec<&str>)| {
            let gpus = if gpus.len() == matrix.gpus.len() { String::new() } else { gpus.join(", ") };
            let versions = if versions.len() == matrix.versions.len() { String::new() } else { versions.join(", ") };
            match (gpus.is_empty(), versions.is_empty()) {
                (true, true) => "everywhere".to_owned(),
                (false, false) => format!("{gpus} with {versions}"),
                _ => gpus + &versions,
            }
        };
        let places: Vec<String> = places.into_iter().map(place).collect();
        found.push(format!("[`{one}`](reasons.md#{}): {}", one.replace('.', ""), places.join(" and ")));
    }
    found
}

/// The code in a reason's text, such as `[rule / heads.group] q: ...`.
fn code(reason: &str) -> Option<&str> {
    Some(reason.split_once(" / ")?.1.split_once(']')?.0)
}

/// Escapes text for HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

const STYLE: &str = "\
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f23;--dim:#57606a;--line:#d0d7de;--yes:#1a7f37;--no:#cf222e;--bar:#f6f8fa}\
@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--dim:#8b949e;--line:#30363d;--yes:#3fb950;--no:#ff7b72;--bar:#161b22}}\
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.45 system-ui,sans-serif;padding-bottom:40vh}\
main{max-width:1100px;margin:0 auto;padding:16px}h1{font-size:1.5rem;margin:.2em 0}h2{font-size:1.1rem;margin:1.6em 0 .4em}\
p{color:var(--dim);margin:.4em 0}.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px}\
table{border-collapse:collapse;width:100%}th,td{padding:5px 6px;border-bottom:1px solid var(--line);white-space:nowrap;text-align:center}\
tr:last-child td,tr:last-child th{border-bottom:0}thead th{background:var(--bar);font-weight:600}\
th:first-child{position:sticky;left:0;background:var(--bg);text-align:left;font-weight:400;white-space:normal;min-width:9.5em;max-width:19em;border-right:1px solid var(--line);z-index:1}\
thead th:first-child{background:var(--bar);font-weight:600}\
button{font:inherit;border:0;background:none;padding:5px 3px;margin:0;cursor:pointer;color:var(--no);font-weight:700;min-width:1.7em;border-radius:5px}\
td i{font-style:normal;display:inline-block;min-width:1.7em;color:var(--yes);padding:5px 3px}button:focus-visible,button[aria-pressed=true]{outline:2px solid currentColor}\
#why{position:fixed;z-index:2;left:0;right:0;bottom:0;max-height:38vh;overflow:auto;background:var(--bar);border-top:1px solid var(--line);padding:10px 16px}\
#why div{max-width:1100px;margin:0 auto}#why b{display:block}#why ul{margin:.3em 0 0;padding-left:1.2em}#why li{overflow-wrap:anywhere;margin:.25em 0}\
@media(max-width:600px){body{font-size:14px}main{padding:10px}th:first-child{min-width:8em;max-width:9.5em}}";

/// Names each answer by its row, GPU and version, and shows the reasons of the cell under the pointer, or of the tapped
/// cell. Names in the page itself would be half of its bytes.
const SCRIPT: &str = "\
const V=document.body.querySelector('p').textContent.match(/[0-9]+[.][0-9]+[.][0-9]+/g);\
for(const t of document.querySelectorAll('table'))for(const r of t.tBodies[0].rows)for(let c=1;c<r.cells.length;c++){\
const g=t.tHead.rows[0].cells[c].textContent;[...r.cells[c].children].forEach((e,v)=>{\
e.title=r.cells[0].textContent+', '+g+', cuDNN '+V[v];if(e.dataset.r)e.setAttribute('aria-label',e.title+': refused, why')})}\
const R=JSON.parse(document.getElementById('r').textContent),w=document.querySelector('#why div');let last;\
function show(b){if(last)last.setAttribute('aria-pressed',false);last=b;b.setAttribute('aria-pressed',true);w.replaceChildren();\
const t=document.createElement('b');t.textContent=b.title;const u=document.createElement('ul');\
for(const x of R[b.dataset.r]){const l=document.createElement('li');l.textContent=x;u.append(l)}w.append(t,u)}\
for(const b of document.querySelectorAll('button')){b.addEventListener('click',()=>show(b));b.addEventListener('mouseenter',()=>show(b));b.addEventListener('focus',()=>show(b))}";

pub(super) fn html(matrix: &Matrix) -> String {
    let Matrix { gpus, versions, groups, reasons } = matrix;
    let mut body = String::new();
    for group in groups {
        let _ = write!(body, "<h2>{}</h2><div class=scroll><table><thead><tr><th scope=col></th>", escape(group.name));
        gpus.iter().for_each(|gpu| {
            let _ = write!(body, "<th scope=col>{}</th>", escape(gpu));
        });
        body.push_str("</tr></thead><tbody>");
        for row in &group.rows {
            let _ = write!(body, "<tr><th scope=row title=\"{}\">{}</th>", escape(&row.attention), escape(&row.name));
            for cell in &row.cells {
                body.push_str("<td>");
                for answer in cell {
                    let _ = match answer {
                        None => write!(body, "<i>✓</i>"),
                        Some(n) => write!(body, "<button data-r={n}>✕</button>"),
                    };
                }
                body.push_str("</td>");
            }
            body.push_str("</tr>");
        }
        body.push_str("</tbody></table></div>");
    }
    // A closing tag inside the data would end the script element.
    let data = serde_json::to_string(reasons).unwrap_or_else(|_| "[]".into()).replace("</", "<\\/");
    format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width,initial-scale=1\">\
         <title>What runs where</title><style>{STYLE}</style><main><h1>What runs where</h1>\
         <p>Each cell: cuDNN {}, from left to right. Tap or point at a ✕ for the reasons.</p><p>{}</p>{body}</main>\
         <div id=why role=status aria-live=polite><div><b>Tap a ✕ to see why.</b></div></div>\
         <script id=r type=\"application/json\">{data}</script><script>{SCRIPT}</script></html>\n",
        versions.join(", "),
        escape(NOTE)
    )
}
