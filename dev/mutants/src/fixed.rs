//! Finds functions that the compiler evaluates. They stay `const` and have no mutants; other `const` functions lose
//! `const` in the copy.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Block, ExprClosure, Ident, ImplItemConst, ImplItemFn, ItemConst, ItemFn, ItemMacro, ItemStatic, Type};

use super::operators;

/// Names of functions that the compiler evaluates. Functions with the same name count as the same.
#[derive(Default)]
pub(super) struct ConstFunctions {
    called: BTreeSet<String>,
    /// The names that each `const fn` of an area uses.
    of_functions: BTreeMap<String, BTreeSet<String>>,
    /// Whether the current file is in an area.
    in_area: bool,
}

impl ConstFunctions {
    /// Reads a file. Ignores a file that does not parse.
    pub(super) fn read(&mut self, source: &str, in_area: bool) {
        if let Ok(tree) = syn::parse_file(source) {
            self.in_area = in_area;
            self.visit_file(&tree);
        }
    }

    /// Adds functions that evaluated functions call. Call this after reading all files.
    pub(super) fn settle(&mut self) {
        let mut all = std::mem::take(&mut self.of_functions);
        while let Some(name) = all.keys().find(|name| self.called.contains(*name)).cloned() {
            self.called.extend(all.remove(&name).into_iter().flatten());
        }
    }

    /// Whether a function must stay as it is.
    pub(super) fn calls(&self, name: &Ident) -> bool {
        self.called.contains(&name.to_string())
    }

    fn function(&mut self, name: &Ident, is_const: bool, block: &Block) {
        if is_const && self.in_area {
            self.of_functions.entry(name.to_string()).or_default().extend(names(|n| n.visit_block(block)));
        } else if is_const {
            self.called.extend(names(|n| n.visit_block(block)));
        } else {
            self.visit_block(block);
        }
    }
}

impl<'ast> Visit<'ast> for ConstFunctions {
    fn visit_item_fn(&mut self, f: &'ast ItemFn) {
        self.function(&f.sig.ident, f.sig.constness.is_some(), &f.block);
    }

    fn visit_impl_item_fn(&mut self, f: &'ast ImplItemFn) {
        self.function(&f.sig.ident, f.sig.constness.is_some(), &f.block);
    }

    fn visit_item_const(&mut self, c: &'ast ItemConst) {
        self.called.extend(names(|n| n.visit_expr(&c.expr)));
    }

    fn visit_impl_item_const(&mut self, c: &'ast ImplItemConst) {
        self.called.extend(names(|n| n.visit_expr(&c.expr)));
    }

    fn visit_item_static(&mut self, s: &'ast ItemStatic) {
        self.called.extend(names(|n| n.visit_expr(&s.expr)));
    }

    /// A macro that makes items: the names of its definition if it makes constants, and those of its arguments.
    fn visit_item_macro(&mut self, m: &'ast ItemMacro) {
        if m.ident.is_some() {
            let names = identifiers(m.mac.tokens.clone());
            if names.contains("static") || names.contains("const") {
                self.called.extend(names);
            }
        }
        for expression in operators::arguments(&m.mac) {
            self.called.extend(names(|n| n.visit_expr(&expression)));
        }
    }

    fn visit_type(&mut self, ty: &'ast Type) {
        if let Type::Array(array) = ty {
            self.called.extend(names(|n| n.visit_expr(&array.len)));
        }
        visit::visit_type(self, ty);
    }
}

/// Every name in the text of a macro.
fn identifiers(tokens: TokenStream) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for token in tokens {
        match token {
            TokenTree::Ident(name) => drop(found.insert(name.to_string())),
            TokenTree::Group(group) => found.extend(identifiers(group.stream())),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
    found
}

/// Every name in a piece of code, without those in closures.
fn names(visit: impl FnOnce(&mut CalledNames)) -> BTreeSet<String> {
    let mut names = CalledNames(BTreeSet::new());
    visit(&mut names);
    names.0
}

struct CalledNames(BTreeSet<String>);

impl<'ast> Visit<'ast> for CalledNames {
    fn visit_expr_closure(&mut self, _: &'ast ExprClosure) {}

    fn visit_ident(&mut self, name: &'ast Ident) {
        self.0.insert(name.to_string());
    }
}
