//! `cargo xtask release --dry-run`: what a release needs, as a list that says yes or no to each item and what to do.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::{PublishArgs, SemverArgs, manifests, msrv, package, publish_dry_run, semver};
use crate::{bindings, burn, cargo, deny, fetch, ui, wheel};

/// Options of `release`.
#[derive(Debug, clap::Args)]
pub struct ReleaseArgs {
    /// Ask every item of the list; nothing is uploaded
    #[arg(long, required_unless_present = "repository")]
    dry_run: bool,
    /// Write the project's address into every manifest first
    #[arg(long, value_name = "URL")]
    repository: Option<String>,
    /// Leave these items out, which are then not answered with yes
    #[arg(long, value_name = "ITEM", value_delimiter = ',', value_parser = names())]
    without: Vec<String>,
    /// Ask these items alone
    #[arg(long, value_name = "ITEM", value_delimiter = ',', value_parser = names(), conflicts_with = "without")]
    only: Vec<String>,
    /// The commit or tag that `semver` compares with (default: the latest release in the registry)
    #[arg(long, value_name = "REV")]
    baseline: Option<String>,
}

/// An item of the list.
struct Item {
    name: &'static str,
    /// Whether it takes minutes.
    slow: bool,
    /// What was found, or what to do.
    ask: fn(&ReleaseArgs, &fetch::FetchOptions) -> Result<String>,
}

/// The list, what is quick first.
const ITEMS: [Item; 13] = [
    Item { name: "version", slow: false, ask: |_, _| manifests::version(&cargo::root()) },
    Item { name: "tree", slow: false, ask: |_, _| tree(&cargo::root()) },
    Item { name: "repository", slow: false, ask: |_, _| manifests::repository(&cargo::root()) },
    Item { name: "links", slow: false, ask: |_, _| manifests::links(&cargo::root()) },
    Item { name: "docs.rs", slow: false, ask: |_, _| manifests::docs_rs(&cargo::root()) },
    Item { name: "packages", slow: false, ask: |_, _| package().map(|()| "each packs".to_owned()) },
    Item { name: "licences", slow: false, ask: |_, _| licences() },
    Item { name: "goldens", slow: true, ask: |_, options| goldens(options) },
    Item { name: "wheel", slow: true, ask: |_, _| wheel::released().map(|()| "in an empty environment".to_owned()) },
    Item { name: "burn", slow: true, ask: |_, _| burn::check().map(|()| "tests pass".to_owned()) },
    Item { name: "msrv", slow: true, ask: |_, _| msrv().map(|()| "builds".to_owned()) },
    Item { name: "semver", slow: true, ask: |args, _| compared(args.baseline.clone()) },
    Item { name: "publish", slow: true, ask: |_, _| published() },
];

/// Every golden that a test compares; `.md` and `.json` among them are pages that programs write.
const GOLDENS: [&[&str]; 5] = [
    &["-p", "qkvault-graph", "-p", "qkvault-cudnn"],
    &["-p", "qkvault-c", "--test", "header", "--test", "exports"],
    &["-p", "qkvault-cli", "--test", "reasons"],
    &["-p", "qkvault-probe", "--test", "known"],
    &["-p", "qkvault-cli", "--test", "cli", "families"],
];

fn names() -> Vec<&'static str> {
    ITEMS.iter().map(|item| item.name).collect()
}

/// How an item was answered.
enum Answer {
    Yes(String),
    No(String),
    NotAsked,
}

/// Asks the items, prints a table, and fails unless every answer is yes.
///
/// # Errors
///
/// The address cannot be written, or an answer is not yes.
pub fn run(args: &ReleaseArgs, options: &fetch::FetchOptions) -> Result<()> {
    if let Some(address) = &args.repository {
        manifests::set_repository(&cargo::root(), address)?;
        ui::say(&format!("written into every manifest: {address}"));
    }
    if !args.dry_run {
        return Ok(());
    }
    let asked = |item: &Item| {
        let among = |list: &[String]| list.iter().any(|name| name == item.name);
        !among(&args.without) && (args.only.is_empty() || among(&args.only))
    };
    let answers = ITEMS.iter().map(|item| {
        let answer = match asked(item).then(|| (item.ask)(args, options)) {
            None => Answer::NotAsked,
            Some(Ok(found)) => Answer::Yes(found),
            Some(Err(error)) => Answer::No(format!("{error:#}")),
        };
        (item, answer)
    });
    let answers: Vec<(&Item, Answer)> = answers.collect();
    ui::say(&table(&answers));
    verdict(&answers)
}

/// One line for each item.
fn table(answers: &[(&Item, Answer)]) -> String {
    let mut out = String::new();
    for (item, answer) in answers {
        let (answer, more) = match answer {
            Answer::Yes(found) => ("yes", found.as_str()),
            Answer::No(fix) => ("no", fix.as_str()),
            Answer::NotAsked => ("not asked", if item.slow { "takes minutes" } else { "" }),
        };
        let more = more.lines().collect::<Vec<_>>().join(" ");
        out += format!("{:<10} {answer:<9} {more}", item.name).trim_end();
        out.push('\n');
    }
    out
}

/// Whether every answer is yes.
fn verdict(answers: &[(&Item, Answer)]) -> Result<()> {
    let no = answers.iter().filter(|(_, answer)| matches!(answer, Answer::No(_))).count();
    let unasked = answers.iter().filter(|(_, answer)| matches!(answer, Answer::NotAsked)).count();
    ensure!(no + unasked == 0, "not ready for a release: {no} answered no, {unasked} not asked");
    ui::say("ready for a release; nothing was uploaded");
    Ok(())
}

/// Whether everything is committed: a package says of which commit it is.
fn tree(root: &Path) -> Result<String> {
    let git = |words: &[&str]| {
        let done = Command::new("git").args(words).current_dir(root).output().context("git does not start")?;
        ensure!(done.status.success(), "git {}: {}", words.join(" "), String::from_utf8_lossy(&done.stderr).trim());
        Ok(String::from_utf8_lossy(&done.stdout).trim_end().to_owned())
    };
    let changed = git(&["status", "--porcelain"])?;
    let files: Vec<&str> = changed.lines().map(|line| line.get(3..).unwrap_or(line)).collect();
    let more = if files.len() > 3 { " and more" } else { "" };
    ensure!(files.is_empty(), "commit first: {}{more}", files[..files.len().min(3)].join(", "));
    git(&["rev-parse", "--short", "HEAD"])
}

fn licences() -> Result<String> {
    deny::run(&deny::DenyArgs::default())?;
    Ok("and sources of dependencies".to_owned())
}

fn goldens(options: &fetch::FetchOptions) -> Result<String> {
    for words in GOLDENS {
        cargo::run(&[&["test", "--quiet"], words].concat(), &[])
            .context("CONTRIBUTING.md says how to write them anew")?;
    }
    bindings::run(&bindings::BindingsArgs::check().accepting(options.accept_nvidia_license))?;
    Ok("as programs write them".to_owned())
}

fn published() -> Result<String> {
    publish_dry_run(&PublishArgs { no_verify: false })?;
    Ok("each builds from its package".to_owned())
}

/// Compares the interface with the last release. The first one has none.
fn compared(baseline: Option<String>) -> Result<String> {
    if baseline.is_none() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let asked = Command::new(cargo).args(["info", "--registry", "crates-io", "qkvault"]).output();
        let asked = asked.context("cargo does not start")?;
        if !asked.status.success() && String::from_utf8_lossy(&asked.stderr).contains("could not find `qkvault`") {
            return Ok("the first release: the registry has none to compare with".to_owned());
        }
    }
    semver(&SemverArgs { baseline, package: Vec::new() })?;
    Ok("no breaking change that the version does not allow".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(of: impl Fn(&Item) -> Answer) -> Vec<(&'static Item, Answer)> {
        const LIST: &[Item] = &ITEMS;
        LIST.iter().map(|item| (item, of(item))).collect()
    }

    #[test]
    fn every_item_has_one_line_and_only_yes_to_all_is_ready() {
        let all = answers(|_| Answer::Yes("found".to_owned()));
        verdict(&all).expect("ready");
        assert_eq!(table(&all).lines().count(), ITEMS.len());
        let some = answers(|item| if item.slow { Answer::NotAsked } else { Answer::Yes(String::new()) });
        let said = verdict(&some).expect_err("not asked is not yes").to_string();
        assert_eq!(said, "not ready for a release: 0 answered no, 6 not asked");
        assert!(table(&some).contains("msrv       not asked takes minutes\n"), "{}", table(&some));
        let one = answers(|item| match item.name {
            "tree" => Answer::No("commit first:\na.rs".to_owned()),
            _ => Answer::Yes(String::new()),
        });
        assert!(table(&one).contains("tree       no        commit first: a.rs\n"), "{}", table(&one));
        verdict(&one).expect_err("one no");
    }

    #[test]
    fn a_tree_with_changes_names_them() {
        let root = tempfile::tempdir().expect("a folder");
        let git = |words: &[&str]| {
            let who = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
            let done = Command::new("git").args(who).args(words).current_dir(root.path()).output().expect("git");
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        };
        git(&["init", "--quiet"]);
        git(&["commit", "--quiet", "--allow-empty", "--message", "a: b"]);
        assert_eq!(tree(root.path()).expect("clean").len(), 7);
        for name in ["a", "b", "c", "d"] {
            std::fs::write(root.path().join(name), name).expect("written");
        }
        assert_eq!(tree(root.path()).expect_err("changed").to_string(), "commit first: a, b, c and more");
    }
}
