//! Rewrites a source file so that it contains every mutant next to the original code.
//!
//! The rewriter replaces ranges of the text that the parser reports, and leaves the rest as it is. Replacements nest: a
//! replacement contains those inside its range.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context as _, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Expr, File, Generics, ImplItemFn, Item, ItemFn, ItemImpl, ItemMod, Macro, Pat, Path};
use syn::{ReturnType, Signature, Stmt, StmtMacro, TraitItemFn, Type};

use super::constants::{self, ChangedRange, Constants};
use super::mutant::{MutantPlace, Mutants};
use super::operators;

/// One file being rewritten.
pub(super) struct Rewriter<'s> {
    file: &'s str,
    source: &'s str,
    pub(super) constants: &'s Constants,
    mutants: &'s mut Mutants,
    /// Rows of rules with mutants of their bounds on versions.
    pub(super) rows: &'s mut Vec<ChangedRange>,
    edits: Vec<(Range<usize>, String)>,
    within: Vec<String>,
    /// The text of the innermost item.
    item: Range<usize>,
    /// Whether the compiler evaluates the current code, so that it cannot read an environment variable.
    pub(super) fixed: bool,
    in_function: bool,
    /// For each constant so far, the condition and the value of its mutants.
    pub(super) changed: BTreeMap<String, Vec<(String, String)>>,
    /// The text of each of these constants.
    pub(super) values: BTreeMap<String, String>,
    /// What the file imports from its crate.
    pub(super) imports: BTreeMap<String, String>,
}

/// Rewrites a file, and adds its mutants to the list.
pub(super) fn rewrite<'s>(
    file: &'s str,
    source: &'s str,
    constants: &'s Constants,
    mutants: &'s mut Mutants,
    rows: &'s mut Vec<ChangedRange>,
) -> Result<String> {
    let tree: File = syn::parse_file(source).with_context(|| format!("{file} does not parse"))?;
    let mut rewriter = Rewriter {
        file,
        source,
        constants,
        mutants,
        rows,
        edits: Vec::new(),
        within: Vec::new(),
        item: 0..source.len(),
        fixed: false,
        in_function: false,
        changed: BTreeMap::new(),
        values: BTreeMap::new(),
        imports: constants::imports(&tree),
    };
    rewriter.visit_file(&tree);
    Ok(rewriter.text(0..source.len()))
}

/// The range of a syntax node in the text.
pub(super) fn range(piece: &impl Spanned) -> Range<usize> {
    piece.span().byte_range()
}

impl<'s> Rewriter<'s> {
    pub(super) const fn file(&self) -> &'s str {
        self.file
    }

    /// The original text of a range.
    pub(super) fn written(&self, at: &Range<usize>) -> &'s str {
        &self.source[at.clone()]
    }

    /// The text of a range with all replacements inside it.
    pub(super) fn text(&self, at: Range<usize>) -> String {
        let mut inside: Vec<_> =
            self.edits.iter().filter(|(place, _)| at.start <= place.start && place.end <= at.end).collect();
        inside.sort_by_key(|(place, _)| (place.start, place.end));
        let (mut text, mut done) = (String::new(), at.start);
        for (place, new) in inside {
            text.push_str(&self.source[done..place.start]);
            text.push_str(new);
            done = place.end;
        }
        text + &self.source[done..at.end]
    }

    /// Replaces a range, and discards the replacements inside it.
    pub(super) fn replace(&mut self, at: Range<usize>, text: String) {
        self.edits.retain(|(place, _)| !(at.start <= place.start && place.end <= at.end));
        self.edits.push((at, text));
    }

    /// Inserts a text.
    pub(super) fn insert(&mut self, at: usize, text: String) {
        self.edits.push((at..at, text));
    }

    /// Adds a mutant of a range, and returns the expression that is true if it is on.
    pub(super) fn mutant(&mut self, at: &Range<usize>, to: &str) -> Option<String> {
        self.mutant_from(at, &self.source[at.clone()], to)
    }

    /// Adds a mutant of a range, and names it with the text around it in its line, because short texts such as numbers
    /// occur often.
    pub(super) fn mutant_in_line(&mut self, at: &Range<usize>, to: &str) -> Option<String> {
        const AROUND: usize = 16;
        let before = self.source[..at.start].rsplit('\n').next().unwrap_or_default();
        let after = self.source[at.end..].split('\n').next().unwrap_or_default();
        let skip = before.chars().count().saturating_sub(AROUND);
        let before: String = before.chars().skip(skip).collect();
        let after: String = after.chars().take(AROUND).collect();
        let from = format!("{before}{}{after}", self.written(at));
        self.mutant_from(at, &from, &format!("{before}{to}{after}"))
    }

    /// Adds a mutant of a range, with `from` as its original code.
    pub(super) fn mutant_from(&mut self, at: &Range<usize>, from: &str, to: &str) -> Option<String> {
        let line = self.source[..at.start].matches('\n').count() + 1;
        let within = self.within.join("::");
        let item = &self.source[self.item.clone()];
        self.mutants.add(&MutantPlace { file: self.file, line, within: &within, item, from, to })
    }

    /// Adds the mutant that negates a condition.
    pub(super) fn negate(&mut self, at: Range<usize>) {
        let to = format!("!({})", self.written(&at));
        if let Some(on) = self.mutant(&at, &to) {
            let text = self.text(at.clone());
            self.replace(at, format!("(({text}) ^ {on})"));
        }
    }

    /// A constant's name with its modules inside the file.
    pub(super) fn inside_file(&self, name: &str) -> String {
        let modules = self.within.split_last().map_or(&[][..], |(_, modules)| modules);
        [modules, &[name.to_owned()]].concat().join("::")
    }

    fn inside(&mut self, name: String, item: Range<usize>, visit: impl FnOnce(&mut Self)) {
        self.within.push(name);
        let outer = std::mem::replace(&mut self.item, item);
        visit(self);
        self.item = outer;
        self.within.pop();
    }

    fn function(&mut self, signature: &Signature, block: &Block, item: Range<usize>) {
        // Not asked where there are mutants.
        if signature.ident == "affected_by" {
            return;
        }
        if let Some(word) = &signature.constness {
            if self.constants.fixed.calls(&signature.ident) {
                return;
            }
            self.replace(range(word), String::new());
        }
        self.inside(signature.ident.to_string(), item, |this| {
            let outer = (this.fixed, this.in_function);
            (this.fixed, this.in_function) = (false, true);
            this.visit_block(block);
            let start = block.brace_token.span.open().byte_range().end;
            for value in results(&signature.output, block) {
                if let Some(on) = this.mutant_from(&(start..start), "the function", &value) {
                    this.insert(start, format!(" if {on} {{ {value} }} "));
                }
            }
            (this.fixed, this.in_function) = outer;
        });
    }
}

/// Statements that return at once, for the mutants of a function.
fn results(output: &ReturnType, block: &Block) -> Vec<String> {
    let ReturnType::Type(_, ty) = output else {
        return if block.stmts.is_empty() { Vec::new() } else { vec!["return;".to_owned()] };
    };
    let Type::Path(ty) = &**ty else { return Vec::new() };
    let Some(last) = ty.path.segments.last() else { return Vec::new() };
    let first_is_unit = match &last.arguments {
        syn::PathArguments::AngleBracketed(given) => {
            matches!(given.args.first(), Some(syn::GenericArgument::Type(Type::Tuple(t))) if t.elems.is_empty())
        }
        _ => false,
    };
    let values: &[&str] = match last.ident.to_string().as_str() {
        "bool" => &["true", "false"],
        "Option" => &["None"],
        "Vec" => &["Vec::new()"],
        "String" => &["String::new()"],
        "Result" if first_is_unit => &["Ok(())"],
        "i64" | "u64" | "i32" | "u32" | "usize" => &["0", "1"],
        _ => &[],
    };
    values.iter().map(|value| format!("return {value};")).collect()
}

/// Whether an item is a test or only compiles for tests.
fn is_test(attributes: &[Attribute]) -> bool {
    let is = |a: &Attribute, word: &str| a.path().is_ident(word);
    let only_tests = |a: &Attribute| a.parse_args::<Path>().is_ok_and(|p| p.is_ident("test"));
    attributes.iter().any(|a| is(a, "test") || (is(a, "cfg") && only_tests(a)))
}

/// Whether an `impl` is of `Display` or `Debug`.
fn shows(item: &ItemImpl) -> bool {
    let name = item.trait_.as_ref().and_then(|(path, _)| path.segments.last());
    name.is_some_and(|s| s.ident == "Display" || s.ident == "Debug")
}

impl<'ast> Visit<'ast> for Rewriter<'_> {
    fn visit_item_fn(&mut self, f: &'ast ItemFn) {
        if !is_test(&f.attrs) {
            self.function(&f.sig, &f.block, range(f));
        }
    }

    fn visit_impl_item_fn(&mut self, f: &'ast ImplItemFn) {
        if !is_test(&f.attrs) {
            self.function(&f.sig, &f.block, range(f));
        }
    }

    fn visit_trait_item_fn(&mut self, f: &'ast TraitItemFn) {
        if let Some(block) = &f.default {
            self.function(&f.sig, block, range(f));
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        if !shows(item) && !is_test(&item.attrs) {
            let name = self.written(&range(&item.self_ty)).split('<').next().unwrap_or_default().to_owned();
            self.inside(name, range(item), |this| visit::visit_item_impl(this, item));
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_test(&item.attrs) {
            self.inside(item.ident.to_string(), range(item), |this| visit::visit_item_mod(this, item));
        }
    }

    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Const(c) => self.inside(c.ident.to_string(), range(item), |this| {
                let outer = std::mem::replace(&mut this.fixed, true);
                this.visit_expr(&c.expr);
                this.fixed = outer;
                if !this.in_function {
                    this.constant(c);
                }
            }),
            Item::Static(s) => {
                let outer = std::mem::replace(&mut self.fixed, true);
                self.visit_expr(&s.expr);
                self.fixed = outer;
            }
            // Entries of the registry: `NAME = Entry { .. }`, one after another.
            Item::Macro(m) if m.mac.path.is_ident("entries") => {
                let outer = std::mem::replace(&mut self.fixed, true);
                for entry in operators::arguments(&m.mac) {
                    let name = match &entry {
                        Expr::Assign(entry) => self.written(&range(&*entry.left)).to_owned(),
                        _ => continue,
                    };
                    self.inside(name, range(&entry), |this| this.visit_expr(&entry));
                }
                self.fixed = outer;
            }
            Item::Fn(_) | Item::Impl(_) | Item::Mod(_) | Item::Trait(_) => visit::visit_item(self, item),
            _ => {}
        }
    }

    fn visit_impl_item_const(&mut self, c: &'ast syn::ImplItemConst) {
        let outer = std::mem::replace(&mut self.fixed, true);
        self.visit_expr(&c.expr);
        self.fixed = outer;
    }

    fn visit_expr(&mut self, e: &'ast Expr) {
        match e {
            Expr::Const(_) => return,
            Expr::Repeat(r) => self.visit_expr(&r.expr),
            // The body of a closure runs with the program, even inside a constant.
            Expr::Closure(c) => {
                let outer = std::mem::replace(&mut self.fixed, false);
                self.visit_expr(&c.body);
                self.fixed = outer;
            }
            _ => visit::visit_expr(self, e),
        }
        if self.fixed {
            self.row(e);
        } else {
            operators::mutate(self, e);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        visit::visit_stmt(self, statement);
        if !self.fixed {
            operators::statement(self, statement);
        }
    }

    fn visit_stmt_macro(&mut self, statement: &'ast StmtMacro) {
        self.visit_macro(&statement.mac);
        if !self.fixed && statement.semi_token.is_none() && statement.mac.path.is_ident("matches") {
            self.negate(range(&statement.mac));
        }
    }

    fn visit_macro(&mut self, m: &'ast Macro) {
        for expression in operators::arguments(m) {
            self.visit_expr(&expression);
        }
    }

    fn visit_pat(&mut self, pattern: &'ast Pat) {
        if let Pat::Guard(guarded) = pattern {
            self.visit_expr(&guarded.guard);
            operators::guard(self, &guarded.guard);
        }
    }

    fn visit_type(&mut self, _: &'ast Type) {}

    fn visit_path(&mut self, _: &'ast Path) {}

    fn visit_generics(&mut self, _: &'ast Generics) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}
