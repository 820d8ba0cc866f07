//! Mutants of numbers in constants: bounds on versions, sizes, rows of tables.
//!
//! The compiler evaluates constants, so this module adds a function next to each constant that returns it or one of its
//! mutants, and code that runs calls the function instead. Entries of the registry are constants with functions inside
//! and keep their versions and GPUs; one more function returns the changed ones by the entry's code.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::{Context as _, Result};
use syn::visit::{self, Visit};
use syn::{Expr, File, Item, ItemConst, ItemMod, Lit, Member, TypeReference, UseTree};

use super::fixed::ConstFunctions;
use super::rewrite::{Rewriter, range};

/// The constants of a package that have mutants, by file and name (`PAGED`, or `since::PAGED` in a module of the file).
#[derive(Default)]
pub(super) struct Constants {
    getters: BTreeMap<(String, String), String>,
    /// Functions that the compiler evaluates.
    pub(super) fixed: ConstFunctions,
}

/// The versions and GPUs of an entry of the registry with one of the numbers changed.
pub(super) struct ChangedRange {
    code: String,
    on: String,
    affected: String,
    /// The imports of the entry's file that these name.
    imports: String,
}

/// What the versions and GPUs of all entries are made of.
const IN_ROWS: [&str; 3] = ["Affected", "Gpus", "Versions"];

/// What a file imports from its crate: the path of each name.
pub(super) fn imports(file: &File) -> BTreeMap<String, String> {
    fn walk(tree: &UseTree, before: &str, found: &mut BTreeMap<String, String>) {
        match tree {
            UseTree::Path(path) => walk(&path.tree, &format!("{before}{}::", path.ident), found),
            UseTree::Group(group) => group.items.iter().for_each(|tree| walk(tree, before, found)),
            UseTree::Name(name) => drop(found.insert(name.ident.to_string(), format!("{before}{}", name.ident))),
            UseTree::Rename(_) | UseTree::Glob(_) => {}
        }
    }
    let mut found = BTreeMap::new();
    for item in &file.items {
        if let Item::Use(item) = item {
            walk(&item.tree, "", &mut found);
        }
    }
    found.retain(|_, path| path.starts_with("crate::"));
    found
}

impl Constants {
    /// Finds the constants of a file with this module path.
    pub(super) fn find(&mut self, file: &str, module: &str, source: &str) -> Result<()> {
        let tree = syn::parse_file(source).with_context(|| format!("{file} does not parse"))?;
        let mut finder = Finder { names: Vec::new(), modules: Vec::new() };
        finder.visit_file(&tree);
        for name in finder.names {
            let getter = format!("{module}::{}", getter(&name));
            self.getters.insert((file.to_owned(), name), getter);
        }
        Ok(())
    }

    /// The path of the function for a constant that a file names.
    pub(super) fn getter(&self, file: &str, name: &str) -> Option<&str> {
        let name = name.trim_start_matches("super::").trim_start_matches("self::");
        if let Some(found) = self.getters.get(&(file.to_owned(), name.to_owned())) {
            return Some(found);
        }
        let last = name.rsplit("::").next()?;
        let mut others = self.getters.iter().filter(|((_, n), _)| n == last);
        others.next().filter(|_| others.next().is_none()).map(|(_, found)| found.as_str())
    }
}

/// The function's name for a constant: `since::paged_or_mutant` for `since::PAGED`.
fn getter(name: &str) -> String {
    let (modules, name) = name.rsplit_once("::").map_or(("", name), |(modules, name)| (modules, name));
    let before = if modules.is_empty() { String::new() } else { format!("{modules}::") };
    format!("{before}{}_or_mutant", name.to_lowercase())
}

struct Finder {
    names: Vec<String>,
    modules: Vec<String>,
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.modules.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.modules.pop();
    }

    fn visit_item_const(&mut self, item: &'ast ItemConst) {
        let of_others = paths(&item.expr).iter().any(|(_, name)| self.names.contains(name));
        if of_others || !numbers(&item.expr).is_empty() {
            self.names.push([&self.modules[..], &[item.ident.to_string()]].concat().join("::"));
        }
    }

    fn visit_block(&mut self, _: &'ast syn::Block) {}
}

/// The ranges of the numbers of an expression; empty if it contains closures.
fn numbers(e: &Expr) -> Vec<Range<usize>> {
    #[derive(Default)]
    struct NumberSpans(Vec<Range<usize>>, bool);
    impl<'ast> Visit<'ast> for NumberSpans {
        fn visit_expr(&mut self, e: &'ast Expr) {
            match e {
                Expr::Lit(l) if matches!(l.lit, Lit::Int(_) | Lit::Float(_)) => self.0.push(range(e)),
                Expr::Closure(_) => self.1 = true,
                _ => visit::visit_expr(self, e),
            }
        }
        fn visit_type(&mut self, _: &'ast syn::Type) {}
    }
    let mut found = NumberSpans::default();
    found.visit_expr(e);
    if found.1 { Vec::new() } else { found.0 }
}

/// The paths in an expression and their ranges, without those in closures.
fn paths(e: &Expr) -> Vec<(Range<usize>, String)> {
    struct Paths(Vec<(Range<usize>, String)>);
    impl<'ast> Visit<'ast> for Paths {
        fn visit_expr(&mut self, e: &'ast Expr) {
            match e {
                Expr::Path(p) => {
                    let names: Vec<String> = p.path.segments.iter().map(|s| s.ident.to_string()).collect();
                    self.0.push((range(e), names.join("::")));
                }
                Expr::Closure(_) => {}
                _ => visit::visit_expr(self, e),
            }
        }
    }
    let mut found = Paths(Vec::new());
    found.visit_expr(e);
    found.0
}

impl Rewriter<'_> {
    /// Adds the function for a constant after it.
    pub(super) fn constant(&mut self, c: &ItemConst) {
        let (at, ty, value) = (range(c), range(&*c.ty), range(&*c.expr));
        // The condition of each mutant, and its value.
        let mut mutants: Vec<(String, String)> = Vec::new();
        for number in numbers(&c.expr) {
            let (to, text) = self.one_more(&value, &number);
            mutants.extend(self.mutant(&value, &to).map(|on| (on, text)));
        }
        // Mutants of earlier constants that this constant uses.
        for (place, name) in paths(&c.expr) {
            for (on, text) in self.changed.get(&name).into_iter().flatten() {
                let (before, after) = (value.start..place.start, place.end..value.end);
                let text = format!("{}({text}){}", self.written(&before), self.written(&after));
                mutants.push((on.clone(), text));
            }
        }
        let name = c.ident.to_string();
        if self.constants.getter(self.file(), &self.inside_file(&name)).is_none() {
            return;
        }
        let shown = self.written(&ty);
        let ifs = mutants
            .iter()
            .map(|(on, text)| format!("if {on} {{ const MUTANT: &{shown} = &({text}); return MUTANT; }} "));
        let (get, ty) = (getter(&name), with_lifetimes(shown, ty.start, &c.ty));
        let ifs: String = ifs.collect();
        self.insert(at.end, format!(" pub(crate) fn {get}() -> &'static {ty} {{ {ifs} &{name} }}"));
        self.values.insert(self.inside_file(&name), self.written(&value).to_owned());
        self.changed.insert(self.inside_file(&name), mutants);
    }

    /// Adds the mutants of an entry of the registry.
    pub(super) fn row(&mut self, e: &Expr) {
        let Expr::Struct(row) = e else { return };
        let field = |name: &str| {
            let is = |m: &Member| matches!(m, Member::Named(ident) if ident == name);
            row.fields.iter().find(|f| is(&f.member)).map(|f| &f.expr)
        };
        let (Some(affected), Some(Expr::Lit(code))) = (field("affected"), field("code")) else { return };
        let Lit::Str(code) = &code.lit else { return };
        let at = range(affected);
        let mut mutants = Vec::new();
        // Constants of the file are not visible elsewhere, so their values stand in their places.
        let values: Vec<(Range<usize>, String)> = paths(affected)
            .into_iter()
            .filter_map(|(place, name)| Some((place, format!("({})", self.values.get(&name)?))))
            .collect();
        for number in numbers(affected) {
            let (to, _) = self.one_more(&at, &number);
            let from = format!("{}: {}", code.value(), self.written(&at));
            let more = (number.clone(), self.one_more(&number, &number).1);
            let text = self.with(&at, values.iter().cloned().chain([more]));
            mutants.extend(self.mutant_from(&at, &from, &to).map(|on| (on, text)));
        }
        for (place, name) in paths(affected) {
            for (on, text) in self.changed.get(&name).into_iter().flatten() {
                let others = values.iter().filter(|(other, _)| *other != place).cloned();
                mutants.push((on.clone(), self.with(&at, others.chain([(place.clone(), format!("({text})"))]))));
            }
        }
        for (on, affected) in mutants {
            let imports = self.imported(&affected);
            self.rows.push(ChangedRange { code: code.value(), on, affected, imports });
        }
    }

    /// The text of a range with other texts in some places.
    fn with(&self, at: &Range<usize>, places: impl Iterator<Item = (Range<usize>, String)>) -> String {
        let mut places: Vec<_> = places.collect();
        places.sort_by_key(|(place, _)| place.start);
        let (mut text, mut done) = (String::new(), at.start);
        for (place, new) in places {
            text += self.written(&(done..place.start));
            text += &new;
            done = place.end;
        }
        text + self.written(&(done..at.end))
    }

    /// The imports of the file that a text names, but those of all entries.
    fn imported(&self, text: &str) -> String {
        let names: BTreeSet<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let used = self.imports.iter().filter(|(name, _)| names.contains(name.as_str()));
        let used = used.filter(|(name, _)| !IN_ROWS.contains(&name.as_str()));
        used.map(|(_, path)| format!("use {path}; ")).collect()
    }

    /// A text with one number increased by one: for display, and for the compiler.
    fn one_more(&self, text: &Range<usize>, number: &Range<usize>) -> (String, String) {
        let (before, after) = (self.written(&(text.start..number.start)), self.written(&(number.end..text.end)));
        let number = self.written(number);
        let one = if number.contains('.') { "1.0" } else { "1" };
        (format!("{before}{number} + {one}{after}"), format!("{before}({number} + {one}){after}"))
    }
}

/// A constant's type as a function result, with explicit `'static` lifetimes.
fn with_lifetimes(text: &str, start: usize, ty: &syn::Type) -> String {
    struct References(Vec<usize>);
    impl<'ast> Visit<'ast> for References {
        fn visit_type_reference(&mut self, t: &'ast TypeReference) {
            if t.lifetime.is_none() {
                self.0.push(range(&t.and_token).end);
            }
            visit::visit_type_reference(self, t);
        }
    }
    let mut found = References(Vec::new());
    found.visit_type(ty);
    let mut text = text.to_owned();
    for place in found.0.into_iter().rev() {
        text.insert_str(place - start, "'static ");
    }
    text
}

/// The function that returns the versions and GPUs of an entry, or those of a mutant of it.
pub(super) fn affected(rows: &[ChangedRange]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut by_code: BTreeMap<&str, String> = BTreeMap::new();
    for ChangedRange { code, on, affected, imports } in rows {
        *by_code.entry(code).or_default() +=
            &format!("if {on} {{ {imports}const MUTANT: &[Affected] = {affected}; return MUTANT; }} ");
    }
    let arms: String = by_code.iter().map(|(code, ifs)| format!("        {code:?} => {{ {ifs}}}\n")).collect();
    format!(
        "\nuse crate::registry::{{{}}};\n\npub(crate) fn affected(code: &str, usual: &'static [Affected]) -> \
         &'static [Affected] {{\n    \
         match code {{\n{arms}        _ => {{}}\n    }}\n    usual\n}}\n",
        IN_ROWS.join(", ")
    )
}
