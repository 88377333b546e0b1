// The site that make docs builds: README.md is its entry, docs/README.md, the index by task, its navigation.
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs'
import { join, posix } from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'

const root = fileURLToPath(new URL('../..', import.meta.url))
const forge = 'https://github.com/millrace-go/millrace'

const read = (page) => readFileSync(join(root, page), 'utf8')
const documents = (folder) => readdirSync(join(root, folder)).filter((name) => name.endsWith('.md')).map((name) => posix.join(folder, name))
const examples = readdirSync(join(root, '_examples')).map((name) => `_examples/${name}/README.md`).filter((page) => existsSync(join(root, page)))
const pages = new Set([...documents('.'), ...documents('docs'), ...documents('docs/decisions'), ...examples])

const served = (page) => page.replace(/README\.md$/, 'index.md')
const item = (page) => ({ text: read(page).match(/^# (.+)$/m)[1].replaceAll('`', ''), link: '/' + served(page) })

const first = ['README.md', 'docs/first-hour.md', 'docs/README.md']

// A page stands in the section of the index that names it first.
function sections() {
  const named = new Set(first)
  return read('docs/README.md').split('\n## ').slice(1).map((section) => {
    const items = []
    for (const [, file] of section.matchAll(/\]\(([^)#]+\.md)/g)) {
      const page = posix.join('docs', file)
      if (!named.has(page)) items.push(item(page))
      named.add(page)
    }
    return { text: section.split('\n')[0], items }
  })
}

// Links are those of the repository. Those to what is no page lead to the forge; VitePress fails at those to nothing.
function target(from, href) {
  if (/^([a-z]+:|#)/.test(href)) return href
  const [file, anchor = ''] = href.split(/(?=#)/)
  const to = posix.join(posix.dirname(from), file)
  if (pages.has(to)) return '/' + served(to) + anchor
  if (!existsSync(join(root, to))) return href
  return `${forge}/${statSync(join(root, to)).isDirectory() ? 'tree' : 'blob'}/main/${to}${anchor}`
}

function config(md) {
  md.core.ruler.push('millrace', ({ tokens, env }) => {
    for (const token of tokens.flatMap((block) => [block, ...(block.children ?? [])])) {
      if (token.type === 'link_open') token.attrSet('href', target(env.relativePath, token.attrGet('href')))
      if (token.type === 'code_block') Object.assign(token, { type: 'fence', info: 'text' }) // which has a frame
    }
  })
}

// The anchors of headings are those of the forge.
const slugify = (heading) => heading.toLowerCase().replace(/[^a-z0-9 _-]/g, '').trim().replaceAll(' ', '-')

// On the server Vue is this folder's, also for pages that lie outside of it.
const vue = { name: 'vue', enforce: 'pre', resolveId: (id, _, { ssr }) => (ssr && /^vue(\/|$)/.test(id) ? { id, external: true } : null) }

export default defineConfig({
  title: 'Millrace',
  srcDir: '..',
  srcExclude: ['bin/**', 'tests/**'],
  rewrites: served,
  markdown: { anchor: { slugify }, config },
  vite: { plugins: [vue], build: { chunkSizeWarningLimit: 5000 } },
  themeConfig: {
    search: { provider: 'local' },
    outline: 'deep',
    nav: [{ text: 'By task', link: '/docs/' }, { text: 'Changelog', link: '/CHANGELOG.md' }],
    socialLinks: [{ icon: 'github', link: forge }],
    sidebar: [
      { items: first.map(item) },
      ...sections(),
      { text: 'Examples', collapsed: true, items: examples.map(item) },
      { text: 'Decisions', collapsed: true, items: documents('docs/decisions').map(item) },
    ],
  },
})
